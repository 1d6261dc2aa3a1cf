//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"context"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// probeTimeout bounds the probe of a device in Open, which has no context argument. A working
// device takes milliseconds.
const probeTimeout = 10 * time.Second

// driver implements cudaipc.Driver over libcuda.
type driver struct {
	lib   *library
	cards []card

	mu     sync.Mutex // held while a context is made, so that it is made once
	closed bool
	open   map[cudaipc.UUID]*gpuRef
}

// gpuRef counts the open devices of a GPU.
type gpuRef struct {
	*gpu
	count int
}

// Open loads the driver and lists the devices. The errors are [cudaipc.ErrNotBuilt],
// [cudaipc.ErrNoDriver], [cudaipc.ErrDriverTooOld] and [cudaipc.ErrNoDevice].
func Open(o Options) (cudaipc.Driver, error) {
	lib, err := load(o.libcuda())
	if err != nil {
		return nil, err
	}
	cards, err := lib.cards()
	if err != nil {
		lib.close()
		return nil, err
	}
	return &driver{lib: lib, cards: cards, open: make(map[cudaipc.UUID]*gpuRef)}, nil
}

// errClosed returns the error of a closed driver.
func (d *driver) errClosed() error {
	return refusal(symInit, deinitialized, cudaipc.UUID{}, cudaipc.ErrClosed, "the driver")
}

// Name implements cudaipc.Driver.
func (d *driver) Name() string { return "cuda" }

// Probe implements cudaipc.Driver. A device without a context, or whose context fails during the
// probe, is in the list without capabilities.
func (d *driver) Probe(ctx context.Context) ([]cudaipc.Caps, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.errClosed()
	}
	all := make([]cudaipc.Caps, 0, len(d.cards))
	for i := range d.cards {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		caps, err := d.probe(ctx, &d.cards[i])
		if err != nil {
			return nil, err
		}
		all = append(all, caps)
	}
	return all, nil
}

func (d *driver) probe(ctx context.Context, of *card) (cudaipc.Caps, error) {
	u, err := d.acquire(of)
	if err != nil {
		return d.unusable(of, err), nil
	}
	defer d.release(u)
	caps, err := u.probe(ctx, d.describe(of))
	if err != nil && ctx.Err() == nil {
		return d.unusable(of, err), nil
	}
	return caps, err
}

// Open implements cudaipc.Driver.
func (d *driver) Open(uuid cudaipc.UUID) (cudaipc.Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, d.errClosed()
	}
	for i := range d.cards {
		if of := &d.cards[i]; of.uuid == uuid || uuid == (cudaipc.UUID{}) {
			return d.openCard(of)
		}
	}
	return nil, refusal(symDeviceGet, invalidDevice, uuid, cudaipc.ErrNoDevice, "it is not among the %d that this process sees", len(d.cards))
}

func (d *driver) openCard(of *card) (cudaipc.Device, error) {
	u, err := d.acquire(of)
	if err != nil {
		return nil, err
	}
	if u.count == 1 {
		ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
		defer cancel()
		if u.caps, err = u.probe(ctx, d.describe(of)); err != nil {
			d.release(u)
			return nil, err
		}
	}
	return &device{driver: d, ref: u}, nil
}

// acquire adds a reference to a GPU, and starts it first if it is new. acquire and release are
// called with d.mu held.
func (d *driver) acquire(of *card) (*gpuRef, error) {
	u, ok := d.open[of.uuid]
	if !ok {
		g, err := startGPU(d.lib, *of, d.peers(of))
		if err != nil {
			return nil, err
		}
		u = &gpuRef{gpu: g}
		d.open[of.uuid] = u
	}
	u.count++
	return u, nil
}

func (d *driver) release(u *gpuRef) {
	if u.count--; u.count == 0 {
		delete(d.open, u.card.uuid)
		u.stop()
	}
}

// peers returns the devices that can access this device's memory, and whose memory it can access.
func (d *driver) peers(of *card) []int32 {
	var all []int32
	for i := range d.cards {
		other := &d.cards[i]
		if other.number != of.number && d.lib.reaches(other.number, of.number) && d.lib.reaches(of.number, other.number) {
			all = append(all, other.number)
		}
	}
	return all
}

// Usage implements cudaipc.Driver.
func (d *driver) Usage() cudaipc.Usage {
	d.mu.Lock()
	defer d.mu.Unlock()
	var u cudaipc.Usage
	for _, open := range d.open {
		u.Devices += open.count
		open.addUsage(&u)
	}
	return u
}

// Close implements cudaipc.Driver. Devices that are still open are closed.
func (d *driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	for uuid, u := range d.open {
		delete(d.open, uuid)
		u.stop()
	}
	d.lib.close()
	return nil
}
