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

// closeTimeout is how long closing the bus may take, after the processes have ended and requests have
// had their time.
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

	opened    chan struct{} // closed when the fields above, except main, are set
	drain     chan struct{} // closed by the call drain
	drainOnce sync.Once

	mu       sync.Mutex
	phase    Phase
	startErr error         // why the run never becomes ready
	serves   map[int]int   // by pid: as how many replicas the process serves
	changed  chan struct{} // capacity 1: wakes awaitReady
}

// Phase is the phase of a run.
type Phase string

// The phases.
const (
	PhaseStarting Phase = "starting"
	PhaseReady    Phase = "ready"
	PhaseDraining Phase = "draining"
)

// Run runs a pipeline until the context ends, a client calls drain, or the main process ends. In every
// case Run ends all processes that it started and closes its sockets and memory.
//
// The error wraps ErrConfig or ErrQuit, or is a *StageError, a *MainError, or an error of the sockets,
// the memory or the processes; it also names the stages that were given up.
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

// lifetime runs the pipeline from start to close.
func (h *running) lifetime(ctx context.Context) error {
	err := h.open(ctx)
	if err == nil {
		err = h.run(ctx)
	}
	abandoned := h.abandoned()
	h.opts.Outlet.Hurry()
	return errors.Join(err, h.close(ctx, err), abandoned)
}

// open opens the bus and its sockets. It starts no process.
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

// socketPath returns the path of the socket. A default path lies in a folder of this user alone.
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

// run starts the processes, and returns when the run is to drain.
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

// writeNotes prints the notes on a valid file, such as an unused key that resembles a key of the bus.
func (h *running) writeNotes(ctx context.Context) {
	if !h.opts.Logger.Enabled(ctx, slog.LevelWarn) {
		return
	}
	for _, note := range h.pipeline.Notes {
		fmt.Fprintln(h.opts.Outlet, note)
	}
}

// onAnswered runs the action of a call after its answer was sent.
func (h *running) onAnswered(method string) {
	if method == methodDrain {
		h.drainOnce.Do(func() { close(h.drain) })
	}
}
