package child

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// killWait is how long a process may take to end after SIGKILL. Only a process that hangs in the kernel
// takes that long.
const killWait = 5 * time.Second

// maxAttached bounds the recorded descendants of one process.
const maxAttached = 64

// stopped is the reason of a death by Stop.
const stopped = "stopped"

// ReasonRestart is the reason of a death by Restart.
const ReasonRestart = "restarted by hand"

// A Child is a program that is kept running.
type Child struct {
	spec    Spec
	manager *Manager

	// Used by the supervising goroutine alone.
	backoff        history
	restartWaiters []chan<- error // calls of Restart that wait until the present process is ready

	stopOnce, killNowOnce sync.Once
	stop                  chan struct{} // closed by Stop: end the process
	killNow               chan struct{} // closed by Stop: without grace
	restartCalls          chan chan<- error
	done                  chan struct{} // closed when the child has stopped
	toldToEnd             atomic.Bool   // set by Leave, before Stop

	mu       sync.Mutex
	run      *run // the present process, or the last one
	state    State
	since    time.Time
	restarts int
	death    *Death
	err      error
}

// A run is one process of a child. The child's mutex guards the fields.
type run struct {
	process
	started    time.Time
	ready      chan struct{} // closed by Ready
	attached   []int         // the pids that Ready was called with
	reason     string        // why this package ended it
	death      *Death        // nil while it lives; set before deathKnown is closed
	deathKnown chan struct{}
}

func newChild(s Spec, m *Manager) *Child {
	return &Child{
		spec: s, manager: m,
		backoff:      history{Backoff: s.Backoff},
		stop:         make(chan struct{}),
		killNow:      make(chan struct{}),
		restartCalls: make(chan chan<- error),
		done:         make(chan struct{}),
		state:        Starting, since: time.Now(),
	}
}

// Name returns the name of the spec.
func (c *Child) Name() string { return c.spec.Name }

// Ready says that the process does its work, and stops the start timeout. The pid may be that of a
// descendant in the process's group, since a program may be started through another, such as a shell.
// Ready reports whether the process is the child's present one, in time and not about to be ended.
func (c *Child) Ready(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.run == nil || c.run.reason != "" || c.run.death != nil || !c.run.owns(pid) {
		return false
	}
	if len(c.run.attached) == 0 {
		close(c.run.ready)
		c.setState(Running)
	}
	if !slices.Contains(c.run.attached, pid) && len(c.run.attached) < maxAttached {
		c.run.attached = append(c.run.attached, pid)
	}
	return true
}

// Kill kills the present process and its group, if there is one. The policy decides what follows. The
// reason becomes that of the [Death].
func (c *Child) Kill(reason string) {
	c.mu.Lock()
	r := c.run
	c.mu.Unlock()
	if r != nil {
		c.endProcess(r, reason, process.kill)
	}
}

// quitWait is how long a process has to write its stacks.
const quitWait = 2 * time.Second

// Quit is Kill for a process that hangs. It first sends SIGQUIT, on which programs in Go and Python
// write their stacks to standard error, and leaves quitWait for that.
func (c *Child) Quit(reason string) {
	c.mu.Lock()
	r := c.run
	c.mu.Unlock()
	if r != nil {
		c.endProcess(r, reason, process.quit)
		time.AfterFunc(quitWait, r.kill)
	}
}

// Restart ends the present process, if there is one, and starts another one. It also starts one for a
// child that was given up or is done. A process that was ready is ended as by Leave, any other as by
// Stop. The restart does not count towards the limit. Restart calls tell, which must tell the process
// to leave, and returns when the new process is ready. The error says why it is not ready, with the
// last lines of a process that died. When ctx ends, the restart itself goes on.
func (c *Child) Restart(ctx context.Context, tell func()) error {
	if isClosed(c.manager.refused) {
		return ErrClosed
	}
	result := make(chan error, 1)
	select {
	case c.restartCalls <- result:
	case <-c.done:
		return errStopped
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	tell() // from now on its end counts as a restart
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave is Stop for a child whose process was told to leave. The process gets a part of the grace
// before SIGTERM, since a signal would keep programs that do not handle it, such as "go run", from
// removing what they have created.
func (c *Child) Leave(ctx context.Context) error {
	c.toldToEnd.Store(true)
	return c.Stop(ctx)
}

// Stop ends the child for good: SIGTERM to its group, and SIGKILL after the grace or when ctx ends,
// whichever is first. It returns when the process is dead, its output read and the last event
// delivered. If the process is not dead some time after SIGKILL, Stop returns an error. It may be
// called any number of times.
func (c *Child) Stop(ctx context.Context) error {
	c.stopOnce.Do(func() { close(c.stop) })
	grace := c.spec.Grace
	if c.toldToEnd.Load() {
		grace += c.spec.leaveWait()
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		c.killNowOnce.Do(func() { close(c.killNow) })
	case <-time.After(grace):
		// The supervisor has the same timeout, and kills now.
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("child: stop %s (pid %d): %w", c.spec.Name, c.Status().PID, errStuck)
	}
}

// Status returns what the child is doing.
func (c *Child) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Name: c.spec.Name, State: c.state, Since: c.since, Restarts: c.restarts,
		LastExit: c.death, Err: c.err,
	}
	if c.run != nil {
		s.Lines = c.run.lines(c.manager.opts.LogLines)
		if c.run.death == nil {
			s.PID = c.run.pid()
		}
	}
	return s
}

// setState sets the state, with the mutex held.
func (c *Child) setState(s State) {
	if c.state != s {
		c.state, c.since = s, time.Now()
	}
}

// startProcess starts a process.
func (c *Child) startProcess() (*run, error) {
	c.manager.starting.RLock()
	defer c.manager.starting.RUnlock()
	p, err := c.manager.start(&c.spec)
	if err != nil {
		return nil, err
	}
	r := &run{process: p, started: time.Now(), ready: make(chan struct{}), deathKnown: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.run, c.err = r, nil
	c.setState(Starting)
	return r, nil
}

// endProcess marks a process as ending, and signals it.
func (c *Child) endProcess(r *run, reason string, signal func(process)) {
	c.mu.Lock()
	c.markEnding(r, reason)
	c.mu.Unlock()
	signal(r.process)
}

// markEnding notes, with the mutex held, that a process is about to be ended. The first reason counts.
// The process cannot become ready any more.
func (c *Child) markEnding(r *run, reason string) {
	if r.death != nil {
		return
	}
	if r.reason == "" {
		r.reason = reason
	}
	c.setState(Stopping)
}

// find returns the present process, and whether the pid belongs to it.
func (c *Child) find(pid int) (*run, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.run
	if r == nil || r.death != nil {
		return nil, false
	}
	return r, r.owns(pid) || slices.Contains(r.attached, pid)
}

// isPermanent reports whether another start would fail in the same way.
func isPermanent(err error) bool {
	var start *StartError
	return errors.Is(err, ErrClosed) || errors.As(err, &start) && start.permanent()
}
