package drivertest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func testProbe(r *rig) {
	seen := map[cudaipc.UUID]bool{{}: true}
	for _, c := range r.all {
		if seen[c.Device] {
			r.Errorf("%v is there twice, or no UUID", c.Device)
		}
		seen[c.Device] = true
		if c.Name == "" || c.Driver == "" || r.driver.Name() == "" {
			r.Errorf("something has no name: %+v", c)
		}
		if c.TotalBytes <= 0 || c.FreeBytes < 0 || c.FreeBytes > c.TotalBytes {
			r.Errorf("%d bytes free of %d", c.FreeBytes, c.TotalBytes)
		}
		if c.Arenas && c.GranularityBytes <= 0 {
			r.Errorf("arenas with a granularity of %d", c.GranularityBytes)
		}
		for field, has := range map[string]bool{
			"Arenas":           c.Arenas,
			"Handles":          c.Handles,
			"Words":            c.Words,
			"RegisterHost":     c.RegisterHost,
			"RegisterReadOnly": c.RegisterReadOnly,
		} {
			if _, why := c.Why[field]; why == has {
				r.Errorf("%s is %t, and Why says %q", field, has, c.Why[field])
			}
		}
		for _, other := range c.Peers {
			known := slices.ContainsFunc(r.all, func(o cudaipc.Caps) bool { return o.Device == other })
			if !known || other == c.Device {
				r.Errorf("%v cannot be a peer of %v", other, c.Device)
			}
		}
	}
}

func testProbeEnds(r *rig) {
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	if _, err := r.driver.Probe(ctx); !errors.Is(err, context.Canceled) {
		r.Errorf("Probe with a canceled context: %v", err)
	}
}

func testOpen(r *rig) {
	for _, c := range r.all {
		if got := r.device(c.Device).Caps().Device; got != c.Device {
			r.Errorf("Open(%v) opened %v", c.Device, got)
		}
	}
	if got := r.device(cudaipc.UUID{}).Caps().Device; got != r.all[0].Device {
		r.Errorf("the first device is %v, not %v", got, r.all[0].Device)
	}
	_, err := r.driver.Open(cudaipc.UUID{15: 0xee})
	r.wantErr("open a device that is not there", err, cudaipc.ErrNoDevice)
}

// testOpenTwice: two Devices of one GPU share it, and it works until both are closed.
func testOpenTwice(r *rig) {
	again, err := r.driver.Open(r.caps.Device)
	if err != nil {
		r.Fatal(err)
	}
	p := r.alloc(mib)
	if err := fill(r.ctx, again, p, 1, mib); err != nil {
		r.Errorf("memory of the other opening: %v", err)
	}
	if err := again.Close(); err != nil {
		r.Errorf("Close: %v", err)
	}
	r.check("after one of two was closed", p, 1, mib)
}

func testOutOfMemory(r *rig) {
	const much = 1 << 52
	_, err := r.dev.Alloc(much)
	r.wantErr("allocate more than there is", err, cudaipc.ErrOutOfMemory)
	if r.caps.Arenas {
		_, err = r.dev.NewArena(much)
		r.wantErr("make an arena of more than there is", err, cudaipc.ErrOutOfMemory)
	}
	if err := r.dev.Err(); err != nil {
		r.Errorf("the device has failed after that: %v", err)
	}
	r.fill(r.alloc(kib), 1, kib)
}

// testClosed: calls on closed objects are errors.
func testClosed(r *rig) {
	s, err := r.dev.NewStream()
	if err != nil {
		r.Fatal(err)
	}
	e, err := r.dev.NewEvent()
	if err != nil {
		r.Fatal(err)
	}
	other := r.stream()
	if err := errors.Join(s.Close(), e.Close()); err != nil {
		r.Fatal(err)
	}
	r.wantErr("submit to a closed stream", s.Submit(copyOp(0, 0, 0)), cudaipc.ErrClosed)
	r.wantErr("synchronize a closed stream", s.Synchronize(r.ctx), cudaipc.ErrClosed)
	r.wantErr("record a closed event", other.Submit(recordOp(e)), cudaipc.ErrClosed)
	r.wantErr("await a closed event", other.Submit(awaitOp(e)), cudaipc.ErrClosed)
	_, err = e.Done()
	r.wantErr("ask a closed event", err, cudaipc.ErrClosed)

	driver, err := r.open()
	if err != nil {
		r.Fatal(err)
	}
	dev, err := driver.Open(r.caps.Device)
	if err != nil {
		r.Fatal(err)
	}
	if err := dev.Close(); err != nil {
		r.Errorf("close the device: %v", err)
	}
	for call, err := range eachCall(r, dev) {
		r.wantErr(call+" on a closed device", err, cudaipc.ErrClosed)
	}
	if err := driver.Close(); err != nil {
		r.Errorf("close the driver: %v", err)
	}
	_, err = driver.Open(r.caps.Device)
	if !errors.Is(err, cudaipc.ErrClosed) {
		r.Errorf("Open of a closed driver: %v", err)
	}
	if _, err = driver.Probe(r.ctx); !errors.Is(err, cudaipc.ErrClosed) {
		r.Errorf("Probe of a closed driver: %v", err)
	}
}

// eachCall makes each call of a device that makes an object.
func eachCall(r *rig, dev cudaipc.Device) map[string]error {
	errs := map[string]error{}
	_, errs["NewArena"] = dev.NewArena(kib)
	_, errs["ImportArena"] = dev.ImportArena(0, kib)
	_, errs["Alloc"] = dev.Alloc(kib)
	_, _, errs["Export"] = dev.Export(kib)
	_, _, errs["Import"] = dev.Import(cudaipc.Handle{})
	_, errs["RegisterHost"] = dev.RegisterHost(r.pages(4*kib), false)
	_, errs["NewStream"] = dev.NewStream()
	_, errs["NewEvent"] = dev.NewEvent()
	_, errs["WrapStream"] = dev.WrapStream(cudaipc.LegacyStream)
	errs["Free"] = dev.Free(kib)
	errs["Unimport"] = dev.Unimport(kib)
	return errs
}

func testCloseTwice(r *rig) {
	driver, err := r.open()
	if err != nil {
		r.Fatal(err)
	}
	dev, err := driver.Open(r.caps.Device)
	if err != nil {
		r.Fatal(err)
	}
	var closing []func() error
	add := func(err error, c func() error) {
		if err != nil {
			r.Fatal(err)
		}
		closing = append(closing, c)
	}
	s, err := dev.NewStream()
	add(err, s.Close)
	e, err := dev.NewEvent()
	add(err, e.Close)
	if r.caps.Arenas {
		a, err := dev.NewArena(kib)
		add(err, a.Close)
	}
	if r.caps.RegisterHost {
		h, err := dev.RegisterHost(r.pages(4*kib), false)
		add(err, h.Close)
	}
	for i, c := range append(closing, dev.Close, driver.Close) {
		if err := errors.Join(c(), c()); err != nil {
			r.Errorf("close the %dth thing twice: %v", i, err)
		}
	}
}

// testNothingLeft: repeated creation increases neither descriptors nor the driver's counts.
func testNothingLeft(r *rig) {
	once := func() {
		driver, err := r.open()
		if err != nil {
			r.Fatal(err)
		}
		inner := &rig{T: r.T, open: r.open, driver: driver, all: r.all, caps: r.caps, ctx: r.ctx}
		if inner.dev, err = driver.Open(r.caps.Device); err != nil {
			r.Fatal(err)
		}
		inner.useAll()
		before := driver.Usage()
		inner.useAll()
		if after := driver.Usage(); after != before {
			r.Errorf("the driver has %+v, %+v before", after, before)
		}
		err = inner.dev.Close()
		if left := driver.Usage(); left != (cudaipc.Usage{}) {
			r.Errorf("the driver has %+v, with all devices closed", left)
		}
		if err := errors.Join(err, driver.Close()); err != nil {
			r.Fatal(err)
		}
	}
	once() // objects that are loaded once stay
	before := r.descriptors()
	for range 5 {
		once()
	}
	if after := r.descriptors(); after > before {
		r.Errorf("%d descriptors, %d before", after, before)
	}
}

// useAll makes one object of each kind, and closes it.
func (r *rig) useAll() {
	r.Helper()
	p, err := r.dev.Alloc(mib)
	if err != nil {
		r.Fatal(err)
	}
	r.fill(p, 1, mib)
	if r.caps.Handles {
		if _, _, err := r.dev.Export(p); err != nil {
			r.Error(err)
		}
	}
	if r.caps.Arenas {
		a, err := r.dev.NewArena(mib)
		if err != nil {
			r.Fatal(err)
		}
		b, err := r.dev.ImportArena(a.FD(), a.Bytes())
		if err != nil {
			r.Fatal(err)
		}
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			r.Error(err)
		}
	}
	if err := r.dev.Free(p); err != nil {
		r.Error(err)
	}
	s, err := r.dev.NewStream()
	if err != nil {
		r.Fatal(err)
	}
	e, err := r.dev.NewEvent()
	if err != nil {
		r.Fatal(err)
	}
	had := r.driver.Usage()
	if err := errors.Join(s.Submit(recordOp(e)), s.Synchronize(r.ctx), s.Close(), e.Close()); err != nil {
		r.Error(err)
	}
	if has := r.driver.Usage(); had.Streams-has.Streams != 1 || had.Events-has.Events > 1 {
		r.Errorf("without a stream and an event the driver has %+v, %+v before", has, had)
	}
}

func testManyAtOnce(r *rig) {
	const goroutines, rounds, n = 4, 20, 64 * kib
	var all sync.WaitGroup
	for g := range goroutines {
		all.Go(func() {
			for i := range rounds {
				if err := r.round(byte(g*rounds+i), n); err != nil {
					r.Errorf("goroutine %d, round %d: %v", g, i, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func (r *rig) round(seed byte, n int64) error {
	p, err := r.dev.Alloc(n)
	if err != nil {
		return err
	}
	return errors.Join(fill(r.ctx, r.dev, p, seed, n), check(r.ctx, r.dev, p, seed, n), r.dev.Free(p))
}
