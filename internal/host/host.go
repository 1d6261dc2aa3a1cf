package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/internal/hang"
	"github.com/omnibus-runtime/omnibus/internal/host/child"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// closeTimeout is how long what is left may take to let go of memory, when the
// processes are gone and requests have had their time.
const closeTimeout = 5 * time.Second

// running is one run.
type running struct {
	opts     Options
	pipeline *config.Pipeline
	began    time.Time
	socket   string

	bus      *bus.Bus
	server   *host.Server
	web      *web
	health   *hang.Watcher
	children *child.Manager

	stages  []*stage // in topological order
	byName  map[string]*stage
	main    *mainProcess // set with mu held, for endInTime
	command *exec.Cmd    // of the main process; nil: there is none

	opened    chan struct{} // closed when the fields above, but for main, are set
	drain     chan struct{} // closed by the call drain
	drainOnce sync.Once

	mu       sync.Mutex
	phase    Phase
	startErr error         // why it will never be ready
	serves   map[int]int   // as how many replicas each process serves, by its number
	changed  chan struct{} // capacity 1: something that awaitReady looks at
}

// Phase is how far a run has come.
type Phase string

// The phases.
const (
	PhaseStarting Phase = "starting"
	PhaseReady    Phase = "ready"
	PhaseDraining Phase = "draining"
)

// Run runs a pipeline until the context ends, somebody asks it to drain, or the
// main process ends. Whatever happens, nothing that it started is left behind.
//
// The error wraps ErrConfig or ErrQuit, or is a *StageError, a *MainError, or says
// what went wrong with the sockets, the memory or the processes, and which stages were given
// up.
func Run(ctx context.Context, opts Options) error {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	h := &running{
		opts: opts, pipeline: opts.Pipeline, began: time.Now(), phase: PhaseStarting,
		byName: make(map[string]*stage), serves: make(map[int]int), opened: make(chan struct{}), drain: make(chan struct{}), changed: make(chan struct{}, 1),
	}
	defer context.AfterFunc(ctx, opts.Outlet.Hurry)()
	ended := make(chan error, 1)
	go func() { ended <- h.lifetime(ctx) }()
	return h.endInTime(ended)
}

// lifetime is the run from its beginning to its end.
func (h *running) lifetime(ctx context.Context) error {
	err := h.open(ctx)
	if err == nil {
		err = h.run(ctx)
	}
	abandoned := h.abandoned()
	h.opts.Outlet.Hurry()
	return errors.Join(err, h.close(ctx, err), abandoned)
}

// open takes what the run needs, and starts no process.
func (h *running) open(ctx context.Context) error {
	spec, opts, err := h.pipeline.BuildHost(h.opts.Handlers)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	types, err := logged(h.opts.Connectors, h.opts.Logger)
	if err != nil {
		return err
	}
	if err := h.pipeline.Connect(ctx, types, &spec); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	h.addStages()
	opts.Logger, opts.Wait = h.opts.Logger, h.opts.Wait
	if opts.StallTimeout == 0 {
		opts.StallTimeout = DefaultStallTimeout
	}
	if h.bus, err = bus.Open(ctx, spec, opts); err != nil {
		if errors.Is(err, bus.ErrConfig) || errors.Is(err, shmstore.ErrOptions) {
			return fmt.Errorf("%w: %w", ErrConfig, h.pipeline.Refused(err))
		}
		return err
	}
	if h.socket, err = h.socketPath(); err != nil {
		return err
	}
	if h.command, err = h.mainCommand(); err != nil {
		return err
	}
	h.children = child.New(child.Options{Out: h.opts.Outlet, OnEvent: h.onEvent})
	h.server, err = host.Listen(h.bus, h.socket, host.ListenOptions{
		AllowUIDs: h.pipeline.Bus.AllowUIDs,
		Autopsy:   h.autopsy, Number: h.number, OnServe: h.onServe, OnGone: h.onGone, OnStuck: h.onStuck, OnHung: h.onHung,
		Methods: h.methods(), Answered: h.onAnswered,
	})
	if err != nil {
		return fmt.Errorf("the bus %q: %w", h.pipeline.Name, err)
	}
	h.watchHealth(opts.StallTimeout)
	if err := h.openWeb(); err != nil {
		return err
	}
	close(h.opened)
	return nil
}

// socketPath returns where to listen, in a folder that is this user's.
func (h *running) socketPath() (string, error) {
	switch {
	case h.opts.Socket != "":
		return filepath.Abs(h.opts.Socket)
	case h.pipeline.Bus.Socket != "":
		return h.pipeline.Path(h.pipeline.Bus.Socket)
	}
	path, err := node.SocketPath(h.pipeline.Name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err == nil {
		err = privateFolder(filepath.Dir(path))
	}
	return path, err
}

// run starts the processes and returns when it is time to drain.
func (h *running) run(ctx context.Context) error {
	h.writeNotes(ctx)
	if err := h.startStages(); err != nil {
		return err
	}
	if err := h.awaitReady(ctx); err != nil {
		return err
	}
	fmt.Fprintf(h.opts.Outlet, "ready: bus %s at %s\n", h.pipeline.Name, h.socket)
	if err := h.startMain(); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		h.main.interrupt(context.Cause(ctx))
	case <-h.drain:
		h.main.terminate()
	case <-h.main.done():
	}
	return nil
}

// writeNotes says what deserves attention in a file that can be run, such as a key that
// nobody reads and that is nearly one of the bus's.
func (h *running) writeNotes(ctx context.Context) {
	if !h.opts.Logger.Enabled(ctx, slog.LevelWarn) {
		return
	}
	for _, note := range h.pipeline.Notes {
		fmt.Fprintln(h.opts.Outlet, note)
	}
}

// onAnswered does what a call asked for, behind its answer.
func (h *running) onAnswered(method string) {
	if method == methodDrain {
		h.drainOnce.Do(func() { close(h.drain) })
	}
}
