package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Lane carries tensors in the memory of GPUs between this process and others. It
// is safe for concurrent use.
type Lane struct {
	opts    Options
	why     map[Mode]error // reason why a mode does not work
	watcher *watcher
	imports *imports
	maps    maps
	onCount func() // see OnCount

	openMu sync.Mutex // held while a GPU is opened, which can take seconds; comes before mu

	mu           sync.Mutex // guards all below
	devices      map[cudaipc.UUID]*device
	firstDevice  *device // nil: there is no GPU
	senders      []*Sender
	openMessages int // open messages
	idle         chan struct{}
	closed       bool
	stats        Stats
}

// Open probes the machine and makes a lane. A missing GPU or feature is no error: [Lane.Why]
// returns the reason, and tensors then travel through host memory. Errors are those of the options.
func Open(ctx context.Context, opts Options) (*Lane, error) {
	wanted := opts.Driver != nil || opts.NoDriver != nil
	opts = opts.withDefaults()
	l := &Lane{
		opts: opts, why: make(map[Mode]error), watcher: newWatcher(), devices: make(map[cudaipc.UUID]*device),
		imports: newImports(opts.Directory), onCount: func() {},
	}
	if err := opts.Pool.Validate(); err != nil {
		return nil, err
	}
	if err := l.start(ctx); err != nil {
		l.why[IPC], l.why[Pool] = err, err
	}
	for mode, err := range l.why {
		if err != nil && wanted {
			opts.Logger.Info("tensors travel through host memory", slog.Any("instead", mode.String()), slog.Any("why", err))
		}
	}
	return l, nil
}

// start opens the device for sending.
func (l *Lane) start(ctx context.Context) error {
	if l.opts.Driver == nil {
		return l.opts.NoDriver
	}
	if found, err := l.opts.Driver.Probe(ctx); err != nil {
		return err
	} else if len(found) == 0 {
		return cudaipc.ErrNoDevice
	}
	dev, err := l.device(l.opts.Device)
	if err != nil {
		return err
	}
	l.firstDevice = dev
	caps := dev.Caps()
	l.why[IPC] = missingAbility(caps, "Words", "Handles")
	if l.why[Pool] = missingAbility(caps, "Words", "Arenas"); l.why[Pool] != nil && l.why[IPC] == nil {
		l.opts.Logger.Info("pools are shared by handles", slog.Any("why", l.why[Pool]))
		l.why[Pool] = nil
	}
	return nil
}

// missingAbility returns an error for the first ability that a device does not have.
func missingAbility(caps cudaipc.Caps, abilities ...string) error {
	has := map[string]bool{"Arenas": caps.Arenas, "Handles": caps.Handles, "Words": caps.Words && caps.RegisterHost}
	for _, a := range abilities {
		if has[a] {
			continue
		}
		why := caps.Why[a]
		if a == "Words" && why == "" {
			why = caps.Why["RegisterHost"]
		}
		return fmt.Errorf("%w: %s has no %s: %s", cudaipc.ErrUnsupported, caps.Name, a, why)
	}
	return nil
}

// device returns a GPU that this process can see, and opens it first if it is new. The zero UUID is
// the first GPU.
func (l *Lane) device(uuid cudaipc.UUID) (*device, error) {
	if d, err := l.known(uuid); d != nil || err != nil {
		return d, err
	}
	l.openMu.Lock()
	defer l.openMu.Unlock()
	if d, err := l.known(uuid); d != nil || err != nil {
		return d, err
	}
	opened, err := l.opts.Driver.Open(uuid)
	if errors.Is(err, cudaipc.ErrNoDevice) && uuid != (cudaipc.UUID{}) {
		return nil, fmt.Errorf("%w: %v", ErrForeignDevice, uuid)
	}
	if err != nil {
		return nil, err
	}
	d := &device{Device: opened, uuid: opened.Caps().Device, watcher: l.watcher, lineRefs: make(map[*line]int)}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.devices[d.uuid] = d
	return d, nil
}

// known returns an open GPU, or nil if it can be opened.
func (l *Lane) known(uuid cudaipc.UUID) (*device, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.devices[uuid]
	if uuid == (cudaipc.UUID{}) {
		d = l.firstDevice
	}
	switch {
	case d != nil:
		return d, nil
	case l.closed:
		return nil, ErrClosed
	case l.opts.Driver == nil:
		return nil, fmt.Errorf("%w: %w", ErrNoLane, l.opts.NoDriver)
	default:
		return nil, nil
	}
}

// deviceOf returns the device of the words of a message with these gates.
func (l *Lane) deviceOf(gates []*gate) (*device, error) {
	if len(gates) > 0 {
		return gates[0].dev, nil
	}
	return l.device(cudaipc.UUID{})
}

func (l *Lane) uuidOf(t *Tensor) cudaipc.UUID {
	if t.Device == (cudaipc.UUID{}) && l.firstDevice != nil {
		return l.firstDevice.uuid
	}
	return t.Device
}

// addMessage counts an open message.
func (l *Lane) addMessage() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("open a message: %w", ErrClosed)
	}
	l.openMessages++
	l.onCount()
	return nil
}

func (l *Lane) removeMessage() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.openMessages--
	l.onCount()
	l.signalIdle()
}

// signalIdle wakes a waiting Close if no message and no sender is open. mu is held.
func (l *Lane) signalIdle() {
	if l.openMessages == 0 && len(l.senders) == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// Why returns nil for a mode that works, or the reason why it does not.
func (l *Lane) Why(mode Mode) error { return l.why[mode] }

// Device returns a GPU; the zero UUID is the lane's first. The lane closes it.
func (l *Lane) Device(uuid cudaipc.UUID) (cudaipc.Device, error) {
	d, err := l.device(uuid)
	if err != nil {
		return nil, err
	}
	return d.Device, nil
}

// Close waits until all messages are closed and settled, and all senders closed, and then releases
// everything. When ctx ends first the lane stays usable, and the error says how many messages and
// senders are open.
func (l *Lane) Close(ctx context.Context) error {
	if err := l.drain(ctx); err != nil {
		return err
	}
	l.watcher.wait()
	errs := []error{l.imports.close(), l.maps.close()}
	l.openMu.Lock()
	defer l.openMu.Unlock()
	l.mu.Lock()
	devices := l.devices
	l.devices = nil
	l.mu.Unlock()
	for _, d := range devices {
		errs = append(errs, d.close())
	}
	return errors.Join(errs...)
}

// removeSender removes a closed sender.
func (l *Lane) removeSender(s *Sender) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.senders = slices.DeleteFunc(slices.Clone(l.senders), func(other *Sender) bool { return other == s })
	l.signalIdle()
}

func (l *Lane) drain(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	if l.openMessages == 0 && len(l.senders) == 0 {
		l.mu.Unlock()
		return nil
	}
	if l.idle == nil {
		l.idle = make(chan struct{})
	}
	idle := l.idle
	l.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		return fmt.Errorf("close the lane: %d messages and %d senders are open: %w", l.openMessages, len(l.senders), ctx.Err())
	}
}
