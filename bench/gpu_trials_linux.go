package bench

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// gpuThroughput sends tensors and, as its baseline, copies them on the GPU: once, or
// twice where the receiver copies them out. Where they travel through host memory, so
// does the baseline.
type gpuThroughput struct {
	*gpuPair
	way     string
	flight  int
	runs    int
	scratch cudaipc.Ptr
	host    cudaipc.HostMemory // for the baseline of spilling
}

// runBytes is the least number of bytes that a round sends.
const runBytes = 4 * mib

func openGPUThroughput(ctx context.Context, opts Options, driver, way string, size int64) (trial, error) {
	t := &gpuThroughput{way: way, flight: gpuFlight(size)}
	t.runs = int(max(runBytes/(size*int64(t.flight)), 1))
	// Tensors in flight, and as many that are not released yet; a piece is at most half an arena.
	pool := max(2*int64(t.flight)*(size+64*kib), 4*mib)
	spec := peerSpec{
		Carrier: byGPU, GPU: &gpuSpec{Waiting: "ladder", Driver: driver, TensorBytes: size, PoolBytes: pool},
		Pattern: pattern{Size: bundleBytes, Every: t.flight},
	}
	if way == gpuSpill {
		spec.Pattern.Size, spec.GPU.PoolBytes = int(size)+bundleBytes, 4*mib
	}
	var err error
	if t.gpuPair, err = openGPUPair(ctx, opts, spec); err != nil {
		return nil, err
	}
	if t.scratch, err = t.alloc(size); err == nil && way == gpuSpill {
		_, t.host, err = t.pinned(size)
	}
	if err != nil {
		return nil, errors.Join(err, t.close(context.WithoutCancel(ctx)))
	}
	return t, nil
}

func (t *gpuThroughput) round(ctx context.Context, swapped bool) ([]sample, error) {
	ours, raw, err := measureBoth(swapped, func() error { return t.ours(ctx) }, func() error { return t.raw(ctx) })
	if err != nil {
		return nil, t.explained(err)
	}
	n := t.runs * t.flight
	return []sample{{microsPer(ours, n), microsPer(raw, n)}}, nil
}

// explained adds the standard error of the peer, if it is dead.
func (p *gpuPair) explained(err error) error {
	if errors.Is(err, errPeerDied) {
		return p.peer.explain(err)
	}
	return err
}

func (t *gpuThroughput) ours(ctx context.Context) error {
	mode, do, to := gpulane.Pool, doView, t.readers
	switch t.way {
	case gpuIn:
		to = 0
	case gpuInOut:
		do = doOut
	case gpuSpill:
		mode, do = gpulane.Default, doOut
	}
	for range t.runs {
		for i := range t.flight {
			v := map[string]any{"do": do, "x": t.tensor(), "last": i == t.flight-1}
			if err := t.publish(ctx, v, mode, to); err != nil {
				return err
			}
		}
		var err error
		if to == 0 {
			err = t.stream.Synchronize(ctx)
		} else {
			_, err = t.awaitAnswer()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t *gpuThroughput) raw(ctx context.Context) error {
	size := t.spec.TensorBytes
	ops := []cudaipc.Op{{Kind: cudaipc.OpCopy, Dst: t.scratch, Src: t.from, Bytes: size}}
	switch t.way {
	case gpuInOut:
		ops = append(ops, cudaipc.Op{Kind: cudaipc.OpCopy, Dst: t.from, Src: t.scratch, Bytes: size})
	case gpuSpill:
		ops = []cudaipc.Op{
			{Kind: cudaipc.OpCopy, Dst: t.host.Ptr(0), Src: t.from, Bytes: size},
			{Kind: cudaipc.OpCopy, Dst: t.scratch, Src: t.host.Ptr(0), Bytes: size},
		}
	}
	var flight []cudaipc.Op
	for range t.flight {
		flight = append(flight, ops...)
	}
	for range t.runs {
		if err := errors.Join(t.stream.Submit(flight...), t.stream.Synchronize(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// gpuLatency sends one tensor after the other.
type gpuLatency struct {
	*gpuPair
	waiting string
	trips   int
}

const latencyBytes = 4 * kib

func openGPULatency(ctx context.Context, opts Options, waiting string, trips int) (trial, error) {
	p, err := openGPUPair(ctx, opts, peerSpec{
		Carrier: byGPU, Pattern: pattern{Size: bundleBytes, Every: 1},
		GPU: &gpuSpec{Waiting: waiting, Driver: opts.Driver, TensorBytes: latencyBytes, PoolBytes: 4 * mib},
	})
	if err != nil {
		return nil, err
	}
	return &gpuLatency{p, waiting, trips}, nil
}

func (l *gpuLatency) round(ctx context.Context, _ bool) ([]sample, error) {
	const warmUp = 200
	if _, _, err := l.run(ctx, warmUp); err != nil {
		return nil, l.explained(err)
	}
	before, err := l.usage(ctx)
	if err != nil {
		return nil, err
	}
	starts, trips, err := l.run(ctx, l.trips)
	if err != nil {
		return nil, l.explained(err)
	}
	after, err := l.usage(ctx)
	if err != nil {
		return nil, err
	}
	grown := after.minus(before)
	return []sample{
		{ours: quantile(starts, 0.5)},
		{ours: quantile(starts, 0.99)},
		{ours: quantile(trips, 0.5)},
		{ours: quantile(trips, 0.99)},
		{ours: float64(grown[usedDescriptors])},
		{ours: float64(grown[usedMemory]) / mib},
	}, nil
}

// run returns, in microseconds from the call that sends a tensor, the times at which the
// GPU of the other process began and at which the answer arrived.
func (l *gpuLatency) run(ctx context.Context, n int) (starts, trips []float64, err error) {
	if l.waiting == "spinning" {
		unpin, err := pin(0)
		if err != nil {
			return nil, nil, err
		}
		defer unpin()
	}
	v := map[string]any{"do": doStart, "x": l.tensor()}
	for range n {
		before := monotonic()
		if err := l.publish(ctx, v, gpulane.Pool, l.readers); err != nil {
			return nil, nil, err
		}
		a, err := l.awaitAnswer()
		if err != nil {
			return nil, nil, err
		}
		starts = append(starts, float64(a.started-before)/1000)
		trips = append(trips, float64(monotonic()-before)/1000)
	}
	return starts, trips, nil
}

// A holder delays a stream by copies.
type holder struct {
	ops []cudaipc.Op
}

// holdFor is how long a stream is delayed at least. The number of copies follows from the time
// of holdSample of them.
const (
	holdFor     = 200 * time.Millisecond
	holdSample  = 4
	holdSamples = 5
	maxHolds    = 1000 // operations that a GPU accepts at once
	holdShare   = 64   // source and target of the copies each take at most 1/holdShare of a GPU's memory
)

func newHolder(ctx context.Context, g *gpuEnd) (h holder, err error) {
	n := min(g.spec.HoldBytes, g.dev.Caps().TotalBytes/holdShare)
	src, err := g.alloc(n)
	if err != nil {
		return h, err
	}
	dst, err := g.alloc(n)
	if err != nil {
		return h, err
	}
	op := cudaipc.Op{Kind: cudaipc.OpCopy, Dst: dst, Src: src, Bytes: n}
	sampled := func() (time.Duration, error) {
		start := time.Now()
		for range holdSample {
			if err := g.stream.Submit(op); err != nil {
				return 0, err
			}
		}
		err := g.stream.Synchronize(ctx)
		return time.Since(start), err
	}
	took := time.Duration(math.MaxInt64)
	for range holdSamples { // the first touches the memory; the fastest counts
		t, err := sampled()
		if err != nil {
			return h, err
		}
		took = min(took, t)
	}
	for range min(1+int64(holdFor)*holdSample/max(int64(took), 1), maxHolds) {
		h.ops = append(h.ops, op)
	}
	return h, nil
}

func (h holder) occupy(s cudaipc.Stream) error { return s.Submit(h.ops...) }
