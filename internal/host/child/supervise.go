package child

import (
	"errors"
	"fmt"
	"time"
)

// errNever is the error of a child that is given up by its policy.
var errNever = errors.New("its restart policy is never")

// errStopped is the error of Restart for a child that Stop or Close ended.
var errStopped = errors.New("it is being stopped, for good")

// supervise keeps the child running until it is stopped. It is the child's
// goroutine, and alone sends its events.
func (c *Child) supervise(r *run) {
	defer c.manager.forget(c)
	for r != nil {
		r = c.successor(c.watch(r))
	}
}

// watch returns when the process is dead.
func (c *Child) watch(r *run) *Death {
	c.emit(Event{Kind: EventStarted, PID: r.pid()})
	w := watcher{Child: c, run: r, ready: r.ready, stop: c.stop, killNow: c.killNow, restartCalls: c.restartCalls}
	clock := time.NewTimer(c.spec.StartTimeout)
	defer clock.Stop()
	for w.step(clock) {
	}
	if isClosed(w.ready) {
		w.announce() // both had happened, and the death was seen first
	}
	death := c.recordDeath(r)
	if death.Reason != ReasonRestart { // else those that wait for this process wait for the next one
		c.answerRestarts(errors.New(death.Report()))
	}
	c.restartWaiters = append(c.restartWaiters, w.nextWaiters...)
	return death
}

// A watcher holds what is still waited for. A channel is nil when it has been
// seen.
type watcher struct {
	*Child
	run                  *run
	ready, stop, killNow <-chan struct{}
	restartCalls         <-chan chan<- error
	nextWaiters          []chan<- error // for the process after this one
	leaving              bool           // it was not asked by a signal yet
	ending               bool           // it was
}

// step handles one thing that happens, and reports whether to go on. The clock
// is that of the start timeout, and later of the grace.
func (w *watcher) step(clock *time.Timer) bool {
	select {
	case <-w.run.done():
		return false
	case <-w.ready:
		w.announce()
		if !w.leaving && !w.ending {
			clock.Stop()
		}
	case <-w.stop:
		w.stop = nil
		if w.toldToEnd.Load() {
			w.leave(clock, stopped)
		} else {
			w.terminate(clock, stopped)
		}
	case result := <-w.restartCalls:
		w.nextWaiters = append(w.nextWaiters, result)
		switch {
		case w.leaving || w.ending:
		case w.ready == nil: // it serves, and was told to leave
			w.leave(clock, ReasonRestart)
		default:
			w.terminate(clock, ReasonRestart)
		}
	case <-w.killNow:
		w.killNow = nil
		w.endProcess(w.run, stopped, process.kill)
	case <-clock.C:
		w.expire(clock)
	}
	return true
}

// leave waits a part of the grace for a process that was told to leave.
func (w *watcher) leave(clock *time.Timer, reason string) {
	w.leaving = true
	w.endProcess(w.run, reason, func(process) {})
	clock.Reset(w.spec.leaveWait())
}

// terminate asks the process to end, within the grace.
func (w *watcher) terminate(clock *time.Timer, reason string) {
	w.ending = true
	w.endProcess(w.run, reason, process.terminate)
	clock.Reset(w.spec.Grace)
}

func (w *watcher) announce() {
	w.ready = nil
	w.emit(Event{Kind: EventReady, PID: w.run.pid()})
	w.answerRestarts(nil)
}

// answerRestarts answers the calls of Restart that wait for the present process.
func (c *Child) answerRestarts(err error) {
	for _, result := range c.restartWaiters {
		result <- err // it has room
	}
	c.restartWaiters = nil
}

// expire goes one step further with a process that used up its time to leave, to
// stop or to start.
func (w *watcher) expire(clock *time.Timer) {
	switch {
	case w.leaving:
		w.leaving = false
		w.terminate(clock, stopped)
	case w.ending:
		w.run.kill()
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
	w.markEnding(w.run, fmt.Sprintf("never became ready within %v, its start_timeout", w.spec.StartTimeout))
	return true
}

// recordDeath makes the death of a process known.
func (c *Child) recordDeath(r *run) *Death {
	code, text := r.exit()
	death := &Death{
		Name: c.spec.Name, PID: r.pid(), Status: text, Code: code,
		Ran: time.Since(r.started), Lines: r.lines(deathLines),
	}
	c.manager.recordDeath(c, r, death)
	close(r.deathKnown)
	c.emit(Event{Kind: EventExited, PID: death.PID, Death: death})
	return death
}

// successor returns the process after one that has ended; nil if there is none,
// for good.
func (c *Child) successor(last *Death) *run {
	var startErr error
	for c.awaitStart(last, startErr) {
		r, err := c.startProcess()
		if err == nil {
			return r
		}
		c.answerRestarts(err)
		last, startErr = c.startFailed(err), err
	}
	c.answerRestarts(errStopped)
	return nil
}

// awaitStart returns when the next process is to start, and false if the child is stopped
// before. A child that has ended waits for Restart.
func (c *Child) awaitStart(last *Death, startErr error) bool {
	if !c.isStopping() && len(c.restartWaiters) == 0 {
		e, s := c.decide(last, startErr)
		c.transition(s, e)
		var pause <-chan time.Time
		if e.Kind == EventRestarting {
			timer := time.NewTimer(e.Pause)
			defer timer.Stop()
			pause = timer.C
		}
		select {
		case <-pause:
			c.countRestart()
			return true
		case result := <-c.restartCalls:
			c.restartWaiters = append(c.restartWaiters, result)
		case <-c.stop:
		case <-c.manager.refused:
		}
		if e.Kind != EventRestarting && c.isStopping() {
			return false // its last event was sent
		}
	}
	if c.isStopping() {
		c.transition(Stopped, Event{Kind: EventStopped, Death: last})
		return false
	}
	c.backoff = history{Backoff: c.spec.Backoff} // Restart does not count, and begins the count anew
	return true
}

// decide returns what follows a death: another process, or the end.
func (c *Child) decide(last *Death, startErr error) (Event, State) {
	var pause time.Duration
	err := startErr
	switch {
	case startErr != nil && isPermanent(startErr):
	case c.spec.Restart != Always && last.succeeded():
		return Event{Kind: EventDone, Death: last}, Done
	case c.spec.Restart == Never:
		err = errNever
	default:
		pause, err = c.backoff.next(time.Now(), last)
	}
	if err != nil {
		return Event{Kind: EventGaveUp, Death: last, Err: err}, Failed
	}
	return Event{Kind: EventRestarting, Pause: pause, Death: last}, Waiting
}

// isStopping reports whether no process is started any more.
func (c *Child) isStopping() bool { return isClosed(c.stop) || isClosed(c.manager.refused) }

// countRestart counts a process that is started again by itself.
func (c *Child) countRestart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restarts++
}

// startFailed is the death of a process that could not be started.
func (c *Child) startFailed(err error) *Death {
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

// transition sets the state and sends the event of it.
func (c *Child) transition(s State, e Event) {
	c.mu.Lock()
	c.setState(s)
	c.err = e.Err
	c.mu.Unlock()
	c.emit(e)
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
