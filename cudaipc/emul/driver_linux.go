package emul

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// name is the driver's name; version is that of the contract that it emulates.
const (
	name    = "emul"
	version = "emul 1"
)

// Driver is an emulated machine with GPUs. It implements [cudaipc.Driver].
type Driver struct {
	opts    Options
	regions *regions

	mu      sync.Mutex
	closed  bool
	gpus    []*gpu
	streams int // number of streams made so far
}

// gpu is one device, for as long as the driver is open.
type gpu struct {
	uuid cudaipc.UUID

	mu      sync.Mutex
	used    int64
	cause   *cudaipc.Error // its sticky error
	primary *primary       // nil while it is not open
	opened  int
}

// New makes a driver.
func New(opts Options) (*Driver, error) {
	if err := opts.fill(); err != nil {
		return nil, err
	}
	d := &Driver{opts: opts, regions: newRegions()}
	for i := range opts.Devices {
		d.gpus = append(d.gpus, &gpu{uuid: UUID(i)})
	}
	return d, nil
}

// Name implements [cudaipc.Driver].
func (d *Driver) Name() string { return name }

// Probe implements [cudaipc.Driver].
func (d *Driver) Probe(ctx context.Context) ([]cudaipc.Caps, error) {
	if err := cmp.Or(ctx.Err(), d.check("Probe")); err != nil {
		return nil, err
	}
	if len(d.gpus) == 0 {
		return nil, noDevice.with("Probe", cudaipc.UUID{}, cudaipc.ErrNoDevice, "")
	}
	all := make([]cudaipc.Caps, len(d.gpus))
	for i := range all {
		all[i] = d.caps(i)
	}
	return all, nil
}

func (d *Driver) caps(device int) cudaipc.Caps {
	o, g := &d.opts, d.gpus[device]
	g.mu.Lock()
	used := g.used
	g.mu.Unlock()
	c := cudaipc.Caps{
		Device:           g.uuid,
		Name:             fmt.Sprintf("emulated GPU %d", device),
		Driver:           version,
		TotalBytes:       o.TotalBytes,
		FreeBytes:        o.TotalBytes - used,
		GranularityBytes: o.GranularityBytes,
		Arenas:           !o.lacks("Arenas"),
		Handles:          !o.lacks("Handles"),
		Words:            !o.lacks("Words"),
		RegisterHost:     !o.lacks("RegisterHost"),
		RegisterReadOnly: !o.lacks("RegisterReadOnly"),
		MIG:              o.MIG,
		Why:              maps.Clone(o.Missing),
	}
	if d.peers() {
		for _, other := range d.gpus {
			if other != g {
				c.Peers = append(c.Peers, other.uuid)
			}
		}
	}
	return c
}

// peers reports whether devices reach each other's memory.
func (d *Driver) peers() bool { return !d.opts.lacks("Peers") }

// Open implements [cudaipc.Driver].
func (d *Driver) Open(uuid cudaipc.UUID) (cudaipc.Device, error) {
	if err := d.check("Open"); err != nil {
		return nil, err
	}
	for i, g := range d.gpus {
		if g.uuid == uuid || uuid == (cudaipc.UUID{}) {
			return d.open(i, g)
		}
	}
	return nil, invalidDevice.with("Open", uuid, cudaipc.ErrNoDevice, "this machine has %d", len(d.gpus))
}

func (d *Driver) open(i int, g *gpu) (cudaipc.Device, error) {
	caps := d.caps(i)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, deinitialized.with("Open", g.uuid, cudaipc.ErrClosed, "")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause != nil {
		return nil, repeatError("Open", g.cause)
	}
	if g.opened++; g.opened == 1 {
		g.primary = newPrimary(d, g)
	}
	return &device{primary: g.primary, caps: caps}, nil
}

// Break ends a device with an error, like a failed operation.
func (d *Driver) Break(uuid cudaipc.UUID, err error) error {
	for _, g := range d.gpus {
		if g.uuid == uuid || uuid == (cudaipc.UUID{}) {
			g.fail(sticky("Break", g.uuid, err))
			return nil
		}
	}
	return invalidDevice.with("Break", uuid, cudaipc.ErrNoDevice, "")
}

// Usage implements [cudaipc.Driver].
func (d *Driver) Usage() cudaipc.Usage {
	var u cudaipc.Usage
	for _, g := range d.gpus {
		g.mu.Lock()
		u.Devices += g.opened
		u.Bytes += g.used
		p := g.primary
		g.mu.Unlock()
		if p != nil {
			p.addUsage(&u)
		}
	}
	return u
}

// Close implements [cudaipc.Driver]. Open devices are closed.
func (d *Driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	for _, g := range d.gpus {
		g.close(true)
	}
	d.regions.close()
	return nil
}

// check returns the reason why a call cannot be made, or nil.
func (d *Driver) check(call string) error {
	d.mu.Lock()
	closed := d.closed
	d.mu.Unlock()
	if closed {
		return deinitialized.with(call, cudaipc.UUID{}, cudaipc.ErrClosed, "")
	}
	return d.refused(call)
}

func (d *Driver) refused(call string) error {
	if d.opts.Refuse == nil {
		return nil
	}
	return d.opts.Refuse(call)
}

func (d *Driver) nextStream() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.streams++
	return d.streams
}

// close undoes one Open, or all of them.
func (g *gpu) close(all bool) {
	g.mu.Lock()
	if all {
		g.opened = 0
	} else {
		g.opened--
	}
	var last *primary
	if g.opened == 0 {
		last, g.primary = g.primary, nil
	}
	g.mu.Unlock()
	if last != nil {
		last.close()
	}
}

// fail ends the device; the first error is kept.
func (g *gpu) fail(cause *cudaipc.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause != nil {
		return
	}
	g.cause = cause
	if g.primary != nil {
		g.primary.halt()
	}
}

// failed returns the sticky error, under the name of the call, or nil.
func (g *gpu) failed(call string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		return nil
	}
	return repeatError(call, g.cause)
}

// charge takes memory of the device, if it has that much.
func (g *gpu) charge(bytes, total int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if bytes > total-g.used {
		return false
	}
	g.used += bytes
	return true
}

func (g *gpu) refund(bytes int64) {
	g.mu.Lock()
	g.used -= bytes
	g.mu.Unlock()
}
