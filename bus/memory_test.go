package bus_test

import (
	"context"
	"runtime"
	"runtime/metrics"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// speechLike is a pipeline of a typical size.
func speechLike() bus.Pipeline {
	p := testbus.Linear(bus.Stage("thinker", testbus.Upper), bus.Stage("talker", testbus.Upper), bus.StageSpec{
		Name: "vocoder", Batch: func(batch []*bus.Delivery) error {
			for _, d := range batch {
				if err := d.Task().Forward(d); err != nil {
					return err
				}
			}
			return nil
		},
	})
	return p
}

// TestOpenAndCloseLeaveNoGoroutine: Close ends all goroutines of a bus that was
// idle, of one that worked, and of one with a running request.
func TestOpenAndCloseLeaveNoGoroutine(t *testing.T) {
	ignored := goleak.IgnoreCurrent()
	g := testbus.NewGate()
	busy := speechLike()
	busy.Stages[1] = g.Stage("talker")
	for _, tc := range []struct {
		name     string
		pipeline bus.Pipeline
		use      func(*bus.Bus)
	}{
		{name: "idle", pipeline: speechLike(), use: func(*bus.Bus) {}},
		{name: "worked", pipeline: speechLike(), use: func(b *bus.Bus) { testbus.MustReceive(t, testbus.SendAll(t, b, 20), testbus.Numbers(20)) }},
		{name: "at work", pipeline: busy, use: func(b *bus.Bus) {
			if _, err := b.Submit(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
			<-g.Entered
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for range 10 {
				b, err := bus.Open(t.Context(), tc.pipeline, bus.Options{Store: shmstore.Options{ArenaBytes: 1 << 20}})
				if err != nil {
					t.Fatal(err)
				}
				tc.use(b)
				if err := b.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			goleak.VerifyNone(t, ignored)
		})
	}
}

// emptyBusBytes bounds the memory of a bus without its store.
const emptyBusBytes = 5 << 20

// TestEmptyBusIsSmall bounds the heap and stacks that a bus adds to the process.
// Its store is in shared memory, which is not counted.
func TestEmptyBusIsSmall(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere the store itself is on the heap")
	}
	before := heapAndStacks()
	b := testbus.Open(t, speechLike(), bus.Options{Store: shmstore.Options{ArenaBytes: 64 << 20, Memory: shmstore.Shared}})
	took := heapAndStacks() - before
	runtime.KeepAlive(b)
	t.Logf("%d KiB", took>>10)
	if took > emptyBusBytes {
		t.Errorf("an empty bus takes %d bytes of heap and stacks, want at most %d", took, emptyBusBytes)
	}
}

// heapAndStacks is the size of heap and stacks in use after a collection.
func heapAndStacks() (sizeBytes int64) {
	runtime.GC()
	runtime.GC() // frees objects that the first one finalized, or that were pooled
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		sizeBytes += int64(s.Value.Uint64())
	}
	return sizeBytes
}

// TestMessagesLeaveNoMemory: many messages, in long and short requests, inline
// and through the store, do not grow the heap.
func TestMessagesLeaveNoMemory(t *testing.T) {
	const slack = 1 << 20
	messages := 100_000
	if testing.Short() {
		messages /= 5
	}
	b := testbus.Open(t, speechLike(), bus.Options{})
	payload := strings.Repeat("x", 1000)
	send := func(requests, each int) {
		for range requests {
			r, err := b.Stream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for i := range each {
					_ = r.Send(t.Context(), payload[:i%len(payload)]) // an early end of the request shows below
				}
				_ = r.CloseSend(t.Context())
			}()
			n := 0
			for _, err := range r.Results(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				n++
			}
			if n != each {
				t.Fatalf("%d results of %d", n, each)
			}
		}
	}
	const long, short = 10_000, 50
	send(1, long)
	send(100, short)
	before := heapAlloc()
	send(messages/2/long, long)
	send(messages/2/short, short)
	if grown := heapAlloc() - before; grown > slack {
		t.Errorf("%d messages left %d bytes on the heap", messages, grown)
	}
	mustDrain(t, b)
}

// TestRequestTakesFewAllocations counts the allocations of a request: itself, its tasks, its
// flows, two channels, the caller's result, and three for its cancelable context.
func TestRequestTakesFewAllocations(t *testing.T) {
	const most = 9
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
		return t.EmitBytes(d.Bytes())
	}}), bus.Options{})
	ctx, payload := t.Context(), make([]byte, 64)
	trip := func() {
		r, err := b.Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Input(ctx).EmitBytes(payload, bus.Last()); err != nil {
			t.Fatal(err)
		}
		for _, err := range r.Results(ctx) {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if allocations := testing.AllocsPerRun(1000, trip); allocations > most {
		t.Errorf("a request allocates %v times", allocations)
	}
}

func heapAlloc() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
