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

// killWait is how long a process may take to vanish after SIGKILL. It takes
// that long only where the kernel cannot let go of it.
const killWait = 5 * time.Second

// maxAttached bounds the descendants of one process that are remembered.
const maxAttached = 64

// stopped is the reason of a death by Stop.
const stopped = "stopped"

// ReasonRestart is the reason of a death by Restart.
const ReasonRestart = "restarted by hand"

// A Child is a program that is kept running.
type Child struct {
	spec    Spec
	manager *Manager

	// Of the supervising goroutine.
	backoff        history
	restartWaiters []chan<- error // calls of Restart that wait for the present process to be ready

	stopOnce, killNowOnce sync.Once
	stop                  chan struct{} // closed by Stop: end
	killNow               chan struct{} // closed by Stop: without grace
	restartCalls          chan chan<- error
	done                  chan struct{} // closed when it was stopped
	toldToEnd             atomic.Bool   // set by Leave, before Stop

	mu       sync.Mutex
	run      *run // the present process, or the last one
	state    State
	since    time.Time
	restarts int
	death    *Death
	err      error
}

// A run is one process of a child. The fields are guarded by the child's mutex.
type run struct {
	process
	started    time.Time
	ready      chan struct{} // closed by Ready
	attached   []int         // the pids that Ready was called with
	reason     string        // why this package ended it
	death      *Death        // nil while it lives; set before buried is closed
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

// Ready says that the process does what it was started for, and stops the
// start timeout. The pid may be that of a descendant in its group: a program
// may be started through another, such as a shell. Ready reports whether the
// process is the child's present one, in time and not about to be ended.
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

// Kill kills the present process and its group, if there is one. What comes
// then is up to the policy. The reason becomes that of the [Death].
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

// Quit is Kill for a process that hangs: it gets SIGQUIT first, on which programs in Go and Python write their
// stacks to standard error, and some seconds for that.
func (c *Child) Quit(reason string) {
	c.mu.Lock()
	r := c.run
	c.mu.Unlock()
	if r != nil {
		c.endProcess(r, reason, process.quit)
		time.AfterFunc(quitWait, r.kill)
	}
}

// Restart ends the present process, if there is one, as Leave does where it was ready and as Stop does
// where it was not, and starts another, also where none would be started by itself any more: because the child was given up, or is done.
// It does not count as a restart. Restart calls tell, which tells the process that it is to leave, and returns when the new process is ready; the error says why
// it is not, and includes the last lines of one that died. When ctx ends, the restart itself goes on.
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
	tell() // now that its end is no death
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave is Stop for a child whose process has been told that it is to end. It gets
// a part of the grace to do so by itself, because a signal would keep programs that know
// nothing of it, such as "go run", from putting away what they have made.
func (c *Child) Leave(ctx context.Context) error {
	c.toldToEnd.Store(true)
	return c.Stop(ctx)
}

// Stop ends the child for good: SIGTERM to its group, SIGKILL after the grace
// or when ctx ends, whichever is first. It returns when the process is gone,
// everything read and the last event delivered, or with an error if
// the process is not gone some time after SIGKILL. It may be called any number of times.
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
		// The supervisor, whose own clock this is, kills now.
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

// setState wants the mutex held.
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

// endProcess signals a process that is to end.
func (c *Child) endProcess(r *run, reason string, signal func(process)) {
	c.mu.Lock()
	c.markEnding(r, reason)
	c.mu.Unlock()
	signal(r.process)
}

// markEnding notes that a process is about to be ended, and why if it is the first
// reason. It cannot become ready any more. The mutex must be held.
func (c *Child) markEnding(r *run, reason string) {
	if r.death != nil {
		return
	}
	if r.reason == "" {
		r.reason = reason
	}
	c.setState(Stopping)
}

// find returns the present process, and whether the pid is one of it.
func (c *Child) find(pid int) (*run, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.run
	if r == nil || r.death != nil {
		return nil, false
	}
	return r, r.owns(pid) || slices.Contains(r.attached, pid)
}

// isPermanent says that starting again is of no use.
func isPermanent(err error) bool {
	var start *StartError
	return errors.Is(err, ErrClosed) || errors.As(err, &start) && start.permanent()
}
