package child

import (
	"errors"
	"fmt"
	"time"
)

// errNever is the error of a child that is given up by its policy.
var errNever = errors.New("its restart policy is never")

// supervise keeps the child running until it is stopped or given up. It is the
// child's goroutine, and alone sends its events.
func (c *Child) supervise(r *run) {
	defer c.manager.forget(c)
	for r != nil {
		r = c.successor(c.watch(r))
	}
}

// watch returns when the process is dead.
func (c *Child) watch(r *run) *Death {
	c.emit(Event{Kind: EventStarted, PID: r.pid()})
	w := watcher{Child: c, run: r, ready: r.ready, stop: c.stop, haste: c.haste}
	clock := time.NewTimer(c.spec.StartTimeout)
	defer clock.Stop()
	for w.step(clock) {
	}
	if isClosed(w.ready) {
		w.announce() // both had happened, and the death was seen first
	}
	return c.bury(r)
}

// A watcher holds what is still waited for. A channel is nil when it has been
// seen.
type watcher struct {
	*Child
	run                *run
	ready, stop, haste <-chan struct{}
	leaving            bool // it was not asked by a signal yet
}

// step handles one thing that happens, and reports whether to go on. The clock
// is that of the start timeout, and later of the grace.
func (w *watcher) step(clock *time.Timer) bool {
	select {
	case <-w.run.done():
		return false
	case <-w.ready:
		w.announce()
		if w.stop != nil {
			clock.Stop()
		}
	case <-w.stop:
		w.stop = nil
		if w.leaving = w.knows.Load(); w.leaving {
			w.end(w.run, stopped, func(process) {})
			clock.Reset(w.spec.leaveWait())
		} else {
			w.terminate(clock)
		}
	case <-w.haste:
		w.haste = nil
		w.end(w.run, stopped, process.kill)
	case <-clock.C:
		w.expire(clock)
	}
	return true
}

// terminate asks the process to end, within the grace.
func (w *watcher) terminate(clock *time.Timer) {
	w.end(w.run, stopped, process.terminate)
	clock.Reset(w.spec.Grace)
}

func (w *watcher) announce() {
	w.ready = nil
	w.emit(Event{Kind: EventReady, PID: w.run.pid()})
}

// expire goes one step further with a process that used up its time to leave, to
// stop or to start.
func (w *watcher) expire(clock *time.Timer) {
	switch {
	case w.leaving:
		w.leaving = false
		w.terminate(clock)
	case w.stop == nil:
		w.end(w.run, stopped, process.kill)
	case w.claimTimeout():
		w.run.kill()
	}
}

// claimTimeout condemns a process that is late, unless it became ready at the
// last moment: then Ready has said so, and the process may live.
func (w *watcher) claimTimeout() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.run.attached) > 0 {
		return false
	}
	w.condemn(w.run, fmt.Sprintf("never became ready within %v, its start_timeout", w.spec.StartTimeout))
	return true
}

// bury makes the death of a process known.
func (c *Child) bury(r *run) *Death {
	code, text := r.exit()
	death := &Death{
		Name: c.spec.Name, PID: r.pid(), Status: text, Code: code,
		Ran: time.Since(r.started), Lines: r.lines(deathLines),
	}
	c.manager.bury(c, r, death)
	close(r.buried)
	c.emit(Event{Kind: EventExited, PID: death.PID, Death: death})
	return death
}

// successor returns the process after one that has ended; nil if there is none.
func (c *Child) successor(last *Death) *run {
	for {
		switch {
		case isClosed(c.stop):
			return c.finish(Event{Kind: EventStopped, Death: last}, Stopped)
		case c.spec.Restart != Always && last.succeeded():
			return c.finish(Event{Kind: EventDone, Death: last}, Done)
		case c.spec.Restart == Never:
			return c.giveUp(last, errNever)
		}
		pause, err := c.backoff.next(time.Now(), last.Ran, last.Ready)
		if err != nil {
			return c.giveUp(last, err)
		}
		c.begun(Waiting)
		c.emit(Event{Kind: EventRestarting, Pause: pause, Death: last})
		if !c.pause(pause) {
			continue
		}
		c.mu.Lock()
		c.restarts++
		c.mu.Unlock()
		r, err := c.begin()
		if err == nil {
			return r
		}
		last = c.unborn(err)
		if isPermanent(err) {
			return c.giveUp(last, err)
		}
	}
}

// unborn is the death of a process that could not be started.
func (c *Child) unborn(err error) *Death {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := err.Error()
	var start *StartError
	if errors.As(err, &start) {
		text = start.text() // without the name, which the Death has
	}
	c.death = &Death{Name: c.spec.Name, Status: "not started: " + text, Code: -1}
	return c.death
}

func (d *Death) succeeded() bool { return d.Code == 0 && d.Reason == "" }

// pause reports false if the child was stopped meanwhile.
func (c *Child) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.stop:
		return false
	}
}

func (c *Child) giveUp(last *Death, err error) *run {
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	return c.finish(Event{Kind: EventGaveUp, Death: last, Err: err}, Failed)
}

func (c *Child) finish(e Event, s State) *run {
	c.begun(s)
	c.emit(e)
	return nil
}

// begun sets the state.
func (c *Child) begun(s State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setState(s)
}

func (c *Child) emit(e Event) {
	e.Name = c.spec.Name
	c.mu.Lock()
	e.Restarts = c.restarts
	c.mu.Unlock()
	c.manager.emit(e)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
