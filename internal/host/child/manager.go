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

// maxGraves bounds the dead processes that Autopsy knows of. A question about
// one comes when its connection breaks, a moment after it.
const maxDead = 64

// Options are the options of a [Manager].
type Options struct {
	// Logger is told of every event; nil discards.
	Logger *slog.Logger
	// Out gets what the children print, whole lines in each Write; nil discards.
	// While it blocks, the children that print block.
	Out io.Writer
	// LogLines is the number of lines kept for each child, each of at most
	// 4 KiB; default 50, at most 10,000.
	LogLines int
	// OnEvent is called for every event, one at a time. It must return soon, and
	// must not call Stop or Close, which wait for it.
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

	// starting is held for reading while a process is started: it runs, and may be
	// asked for, before the goroutine that starts it does again.
	starting sync.RWMutex

	refused chan struct{} // closed, with mu held, by Refuse

	mu       sync.Mutex
	children map[*Child]struct{} // those that were not stopped
	dead     []*deadProcess      // oldest first, at most maxGraves

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

// Start starts a child. If its first process cannot be started, there is no
// child and no event; the error is then a [*StartError], and otherwise
// [ErrClosed] or about the spec.
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

// Find returns the child whose present process has this pid, or has in its
// group a process that does. It waits for those that are being started.
func (m *Manager) Find(pid int) (*Child, bool) {
	c, _, _ := m.lookup(pid)
	return c, c != nil
}

// lookup finds a process that lives, or else the last dead one.
func (m *Manager) lookup(pid int) (*Child, *run, *deadProcess) {
	m.mu.Lock()
	c, r := m.find(pid)
	m.mu.Unlock()
	if r != nil {
		return c, r, nil
	}
	m.starting.Lock() // all that were being started are known
	defer m.starting.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, r = m.find(pid); r != nil {
		return c, r, nil
	}
	return nil, nil, m.findDead(pid)
}

// find wants the mutex held.
func (m *Manager) find(pid int) (*Child, *run) {
	for c := range m.children {
		if r, ok := c.find(pid); ok {
			return c, r
		}
	}
	return nil, nil
}

// Autopsy waits for the death of a process, given its pid or one that Ready was
// called with, and reports false if the pid is not known. Processes that died
// lately are known, too. If ctx ends first, the Status of the Death is [Unknown]
// and its Lines are those printed so far. So it is, too, for a descendant that
// Ready was called with while the process that was started lives on: the exit
// status of a descendant cannot be had.
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

// A grave is a process that is dead. It does not change.
type deadProcess struct {
	death    *Death
	attached []int
}

// findDead returns the last dead process with the pid; nil if there is none. It
// wants the mutex held.
func (m *Manager) findDead(pid int) *deadProcess {
	for _, g := range slices.Backward(m.dead) {
		if g.death.PID == pid || slices.Contains(g.attached, pid) {
			return g
		}
	}
	return nil
}

// recordDeath makes a death known, in one step: there is no moment at which a process
// is neither alive nor dead.
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

// Close stops all children as [Child.Stop] does, at the same time, and waits.
// The manager starts nothing after that.
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

// Refuse has the manager start nothing any more, and returns its children. A process
// that ends has no successor. Refuse waits for nothing: OnEvent may call it.
func (m *Manager) Refuse() []*Child {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !isClosed(m.refused) {
		close(m.refused)
	}
	return slices.Collect(maps.Keys(m.children))
}

// Kill kills all processes and their groups, and starts nothing after that. It does not wait for
// them, nor for OnEvent: it is for a host whose events wait for something that does not come.
func (m *Manager) Kill(reason string) {
	for _, c := range m.Refuse() {
		c.stopOnce.Do(func() { close(c.stop) })
		c.killNowOnce.Do(func() { close(c.killNow) })
		c.Kill(reason)
	}
}

// forget drops a child that was stopped.
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
