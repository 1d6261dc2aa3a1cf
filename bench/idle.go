package bench

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// What nothing costs has no baseline: nothing is what it is compared with.

const (
	idleTime      = 10 * time.Second
	quickIdleTime = 2 * time.Second

	// growthRequests of growthMessages each make a million messages.
	growthRequests = 1000
	growthMessages = 1000

	percent = 100
)

// An idleTrial leaves a bus alone that has been busy before and has a request
// open, whose next input nobody sends, and looks at the processor time of the
// process.
type idleTrial struct {
	bus  *bus.Bus
	wait time.Duration
}

func idleCPUScenario() scenario {
	return scenario{
		name:    "idle/cpu",
		metrics: []metric{{unit: "% of a core", target: valueUpTo(0.1)}},
		rounds:  1,
		open: func(ctx context.Context, opts Options) (trial, error) {
			b, err := openBus(ctx, relay, shmstore.Options{})
			if err != nil {
				return nil, err
			}
			t := &idleTrial{bus: b, wait: idleTime}
			if opts.Quick {
				t.wait = quickIdleTime
			}
			return t, nil
		},
	}
}

func (t *idleTrial) round(ctx context.Context, _ bool) ([]sample, error) {
	if err := smallStream(ctx, t.bus, growthMessages); err != nil {
		return nil, err
	}
	r, err := t.bus.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if err := r.Input(ctx).EmitBytes(make([]byte, smallPayload)); err != nil {
		return nil, err
	}
	d, err := r.Recv(ctx)
	if err != nil {
		return nil, err
	}
	if err := d.Finish(nil); err != nil {
		return nil, err
	}
	// The runtime returns memory to the system in the background: now, rather
	// than while the clock runs.
	debug.FreeOSMemory()

	before, err := processorTime()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	select {
	case <-time.After(t.wait):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	after, err := processorTime()
	if err != nil {
		return nil, err
	}
	return []sample{{ours: percent * (after - before).Seconds() / time.Since(start).Seconds()}}, nil
}

func (t *idleTrial) close(ctx context.Context) error { return t.bus.Close(ctx) }

// smallStream sends a request of n small messages through a bus.
func smallStream(ctx context.Context, b *bus.Bus, n int) error {
	payload := make([]byte, smallPayload)
	return busStream(ctx, b, n, func(in bus.Emitter, _ int) error { return in.EmitBytes(payload) }, nil)
}

// A growthTrial sends a million messages through a bus and looks at what they
// leave behind.
type growthTrial struct {
	bus      *bus.Bus
	requests int
}

func growthScenario() scenario {
	return scenario{
		name: "idle/growth",
		// Where it was, within the noise of a heap that counts in spans.
		metrics: []metric{{unit: "KiB", target: valueUpTo(256)}},
		rounds:  1,
		open: func(ctx context.Context, _ Options) (trial, error) {
			b, err := openBus(ctx, relay, shmstore.Options{})
			if err != nil {
				return nil, err
			}
			return &growthTrial{bus: b, requests: growthRequests}, nil
		},
	}
}

func (t *growthTrial) round(ctx context.Context, _ bool) ([]sample, error) {
	// Buffers grow to the size they need, and stay.
	for range bus.DefaultMaxRequests {
		if err := smallStream(ctx, t.bus, growthMessages); err != nil {
			return nil, err
		}
	}
	before := memoryInUse()
	for range t.requests {
		if err := smallStream(ctx, t.bus, growthMessages); err != nil {
			return nil, err
		}
	}
	return []sample{{ours: (memoryInUse() - before) / kib}}, nil
}

func (t *growthTrial) close(ctx context.Context) error { return t.bus.Close(ctx) }

// A footprintTrial opens a bus of four stages that does nothing, and looks at
// the heap and the stacks it takes besides the arena.
type footprintTrial struct{}

func footprintScenario() scenario {
	return scenario{
		name:    "idle/footprint",
		metrics: []metric{{unit: "MiB", target: valueUpTo(5)}},
		rounds:  minRounds,
		open:    func(context.Context, Options) (trial, error) { return footprintTrial{}, nil },
	}
}

func (footprintTrial) round(ctx context.Context, _ bool) ([]sample, error) {
	before := memoryInUse()
	b, err := openBus(ctx, relay, shmstore.Options{})
	if err != nil {
		return nil, err
	}
	after := memoryInUse()
	arena := b.Stats().Store.ArenaBytes
	if err := b.Close(context.WithoutCancel(ctx)); err != nil {
		return nil, err
	}
	took := after - before
	if took > float64(arena) {
		took -= float64(arena) // this platform has no other memory than the heap
	}
	return []sample{{ours: took / mib}}, nil
}

func (footprintTrial) close(context.Context) error { return nil }

// memoryInUse is what heap and stacks hold, in bytes, after garbage collection.
func memoryInUse() float64 {
	// Twice, because a pool gives its contents up in two steps.
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse + m.StackInuse)
}
