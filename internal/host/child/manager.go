package child

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// maxDead bounds the dead processes that Autopsy knows. A process's connection breaks, and Autopsy is
// called, right after its death.
const maxDead = 64

// Options are the options of a [Manager].
type Options struct {
	// Logger gets a record for every event; nil discards.
	Logger *slog.Logger
	// Out gets the output of the children, whole lines in each Write; nil discards. While Out blocks,
	// children that print block.
	Out io.Writer
	// LogLines is the number of lines kept for each child, each of at most
	// 4 KiB; default 50, at most 10,000.
	LogLines int
	// OnEvent is called for every event, one at a time. It must return soon, and must not call Stop or
	// Close, which wait for it.
	OnEvent func(Event)
}

// maxLogLines bounds LogLines, and so the memory of a child to 40 MiB.
const maxLogLines = 10_000

func (o Options) withDefaults() Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.OnEvent == nil {
		o.OnEvent = func(Event) {}
	}
	o.LogLines = orDefault(o.LogLines, 50)
	o.LogLines = min(max(o.LogLines, 1), maxLogLines)
	return o
}

// A Manager runs the processes of a host.
type Manager struct {
	opts    Options
	console *console
	forker  *forker
	start   func(*Spec) (process, error) // launch; a model in tests

	events sync.Mutex // orders OnEvent

	// starting is read-locked while a process is started. The new process may already run, and a lookup
	// may ask for it, before the goroutine that starts it has recorded it.
	starting sync.RWMutex

	refused chan struct{} // closed, with mu held, by Refuse

	mu       sync.Mutex
	children map[*Child]struct{} // those that were not stopped
	dead     []*deadProcess      // oldest first, at most maxDead

	closeOnce sync.Once
}

// New returns a manager without children. It must be closed.
func New(opts Options) *Manager {
	m := newManager(opts)
	m.forker = newForker()
	m.start = m.launch
	return m
}

func newManager(opts Options) *Manager {
	opts = opts.withDefaults()
	return &Manager{
		opts:     opts,
		console:  &console{log: opts.Logger, w: opts.Out},
		refused:  make(chan struct{}),
		children: make(map[*Child]struct{}),
	}
}

// Start starts a child. If its first process cannot be started, there is no child and no event, and the
// error is a [*StartError]. Other errors are [ErrClosed] and errors of the spec.
func (m *Manager) Start(spec Spec) (*Child, error) {
	spec = spec.withDefaults()
	if err := spec.validate(); err != nil {
		return nil, err
	}
	spec.Args, spec.Env = slices.Clone(spec.Args), slices.Clone(spec.Env)
	c := newChild(spec, m)
	m.mu.Lock()
	if isClosed(m.refused) {
		m.mu.Unlock()
		return nil, ErrClosed
	}
	m.children[c] = struct{}{} // before it starts, so that Close waits for it
	m.mu.Unlock()
	r, err := c.startProcess()
	if err != nil {
		m.forget(c)
		return nil, err
	}
	go c.supervise(r)
	return c, nil
}

// Find returns the child whose present process has this pid, or has a process with it in its group. It
// waits for processes that are being started.
func (m *Manager) Find(pid int) (*Child, bool) {
	c, _, _ := m.lookup(pid)
	return c, c != nil
}

// lookup finds a live process, or else the last dead one with the pid.
func (m *Manager) lookup(pid int) (*Child, *run, *deadProcess) {
	m.mu.Lock()
	c, r := m.find(pid)
	m.mu.Unlock()
	if r != nil {
		return c, r, nil
	}
	m.starting.Lock() // now all processes that were being started are recorded
	defer m.starting.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, r = m.find(pid); r != nil {
		return c, r, nil
	}
	return nil, nil, m.findDead(pid)
}

// find finds a live process, with the mutex held.
func (m *Manager) find(pid int) (*Child, *run) {
	for c := range m.children {
		if r, ok := c.find(pid); ok {
			return c, r
		}
	}
	return nil, nil
}

// Autopsy waits for the death of a process, given its pid or one that Ready was called with. It reports
// false if the pid is unknown. Recently dead processes are known, too. If ctx ends first, the Status of
// the Death is [Unknown] and its Lines are those printed so far. The same holds for a descendant that
// Ready was called with while the process that was started lives: the exit status of a descendant
// cannot be read.
func (m *Manager) Autopsy(ctx context.Context, pid int) (Death, bool) {
	c, r, dead := m.lookup(pid)
	switch {
	case dead != nil:
		return *dead.death, true
	case r == nil:
		return Death{}, false
	}
	select {
	case <-r.deathKnown:
	case <-ctx.Done():
	}
	return c.examine(r, pid), true
}

// examine returns what is known of a process.
func (c *Child) examine(r *run, pid int) Death {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.death != nil {
		return *r.death
	}
	return Death{
		Name: c.spec.Name, PID: pid, Status: Unknown, Code: -1, Reason: r.reason,
		Ready: len(r.attached) > 0, Ran: time.Since(r.started), Lines: r.lines(deathLines),
	}
}

// A deadProcess does not change.
type deadProcess struct {
	death    *Death
	attached []int
}

// findDead returns the last dead process with the pid, with the mutex held; nil: there is none.
func (m *Manager) findDead(pid int) *deadProcess {
	for _, g := range slices.Backward(m.dead) {
		if g.death.PID == pid || slices.Contains(g.attached, pid) {
			return g
		}
	}
	return nil
}

// recordDeath records a death in one step, so that each process is at any moment either alive or dead.
func (m *Manager) recordDeath(c *Child, r *run, death *Death) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	death.Reason, death.Ready = r.reason, len(r.attached) > 0
	r.death, c.death = death, death
	if len(m.dead) == maxDead {
		m.dead = slices.Delete(m.dead, 0, 1)
	}
	m.dead = append(m.dead, &deadProcess{death, r.attached})
}

// Close stops all children at the same time, as [Child.Stop] does, and waits. The manager starts
// nothing afterwards.
func (m *Manager) Close(ctx context.Context) error {
	children := m.Refuse()
	errs := make([]error, len(children))
	var stops sync.WaitGroup
	for i, c := range children {
		stops.Go(func() { errs[i] = c.Stop(ctx) })
	}
	stops.Wait()
	m.closeOnce.Do(func() {
		if m.forker != nil {
			m.forker.close()
		}
	})
	return errors.Join(errs...)
}

// Refuse makes the manager start nothing more, and returns its children. A process that ends has no
// successor. Refuse does not wait: OnEvent may call it.
func (m *Manager) Refuse() []*Child {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !isClosed(m.refused) {
		close(m.refused)
	}
	return slices.Collect(maps.Keys(m.children))
}

// Kill kills all processes and their groups; nothing is started afterwards. It waits neither for them
// nor for OnEvent, since it is for a host whose event handlers hang.
func (m *Manager) Kill(reason string) {
	for _, c := range m.Refuse() {
		c.stopOnce.Do(func() { close(c.stop) })
		c.killNowOnce.Do(func() { close(c.killNow) })
		c.Kill(reason)
	}
}

// forget removes a child that has stopped.
func (m *Manager) forget(c *Child) {
	m.mu.Lock()
	delete(m.children, c)
	m.mu.Unlock()
	close(c.done)
}

func (m *Manager) emit(e Event) {
	m.events.Lock()
	defer m.events.Unlock()
	level := slog.LevelInfo
	switch e.Kind {
	case EventRestarting:
		level = slog.LevelWarn
	case EventGaveUp:
		level = slog.LevelError
	default:
	}
	m.opts.Logger.Log(context.Background(), level, "child process",
		slog.String("event", e.Kind.String()), slog.String("text", e.String()))
	m.opts.OnEvent(e)
}
