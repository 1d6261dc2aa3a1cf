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

// supervise keeps the child running until it is stopped. It runs on the child's goroutine, which alone
// sends the child's events.
func (c *Child) supervise(r *run) {
	defer c.manager.forget(c)
	for r != nil {
		r = c.successor(c.watch(r))
	}
}

// watch watches a process until it is dead, and returns its death.
func (c *Child) watch(r *run) *Death {
	c.emit(Event{Kind: EventStarted, PID: r.pid()})
	w := watcher{Child: c, run: r, ready: r.ready, stop: c.stop, killNow: c.killNow, restartCalls: c.restartCalls}
	clock := time.NewTimer(c.spec.StartTimeout)
	defer clock.Stop()
	for w.step(clock) {
	}
	if isClosed(w.ready) {
		w.announce() // the process became ready and died, and the death was seen first
	}
	death := c.recordDeath(r)
	if death.Reason != ReasonRestart { // else the callers that wait for this process wait for its successor
		c.answerRestarts(errors.New(death.Report()))
	}
	c.restartWaiters = append(c.restartWaiters, w.nextWaiters...)
	return death
}

// A watcher holds the channels that watch still waits for. A channel is nil when it has been received
// from.
type watcher struct {
	*Child
	run                  *run
	ready, stop, killNow <-chan struct{}
	restartCalls         <-chan chan<- error
	nextWaiters          []chan<- error // for the successor
	leaving              bool           // told to leave, and not signalled yet
	ending               bool           // signalled
}

// step handles one event, and reports whether the process lives. The clock is that of the start
// timeout, and later of the grace.
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
		case w.ready == nil: // it was ready, and was told to leave
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

// leave gives a process that was told to leave a part of the grace.
func (w *watcher) leave(clock *time.Timer, reason string) {
	w.leaving = true
	w.endProcess(w.run, reason, func(process) {})
	clock.Reset(w.spec.leaveWait())
}

// terminate sends SIGTERM; the grace begins.
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
		result <- err // the channel has space
	}
	c.restartWaiters = nil
}

// expire takes the next step against a process that used up its time to leave, to end or to start.
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

// claimTimeout marks a late process as ending, unless Ready was called at the last moment: then the
// process may live.
func (w *watcher) claimTimeout() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.run.attached) > 0 {
		return false
	}
	w.markEnding(w.run, fmt.Sprintf("never became ready within %v, its start_timeout", w.spec.StartTimeout))
	return true
}

// recordDeath records the death of a process.
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

// successor returns the process after one that has ended; nil: there is none, for good.
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

// awaitStart waits until the next process is to start, and reports false if the child is stopped first.
// A child that is done or given up waits for Restart.
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
	c.backoff = history{Backoff: c.spec.Backoff} // Restart does not count, and resets the count
	return true
}

// decide decides what follows a death: another process, or the end.
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

// isStopping reports whether no further process is started.
func (c *Child) isStopping() bool { return isClosed(c.stop) || isClosed(c.manager.refused) }

// countRestart counts a restart that was not made by hand.
func (c *Child) countRestart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.restarts++
}

// startFailed records a process that could not be started as a death.
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

// transition sets the state and sends its event.
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
