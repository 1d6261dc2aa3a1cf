package bus_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestTensorsAreReopenedOnRetry: after a panic of a handler that has used a message, the
// next attempt opens the payload again.
func TestTensorsAreReopenedOnRetry(t *testing.T) {
	for name, spec := range map[string]bus.StageSpec{
		"handle": {State: bus.StateNone},
		"replay": {Replay: true},
		"batch":  {State: bus.StateNone, BatchSize: 2},
		"join":   {State: bus.StateNone},
	} {
		t.Run(name, func(t *testing.T) {
			g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
			const n = 100 << 10
			tries := 0
			handle := func(t *bus.Task, d *bus.Delivery) error {
				m, err := d.Tensors(t.Context())
				if err == nil {
					err = g.Check(t.Context(), m, n, 7)
				}
				if tries++; err != nil || tries > 1 {
					return errors.Join(err, m.Close(), t.EmitBytes([]byte("well")))
				}
				_ = m.Close()
				panic("a bug")
			}
			spec.Name, spec.Attempts = "second", 2
			edges := []bus.Edge{{From: "first", To: "second", Tensors: bus.TensorsPool}}
			switch name {
			case "batch":
				spec.Batch = func(batch []*bus.Delivery) error {
					for _, d := range batch {
						if err := handle(d.Task(), d); err != nil {
							return err
						}
					}
					return nil
				}
			case "join":
				spec.Join = func(t *bus.Task, parts []*bus.Delivery) error { return handle(t, parts[1]) }
				edges = append([]bus.Edge{{To: "second"}, {To: "first"}}, edges...)
			default:
				spec.Handle = handle
			}
			b := testbus.Open(t, bus.Pipeline{
				Stages: []bus.StageSpec{{Name: "first", Handle: func(t *bus.Task, _ *bus.Delivery) error {
					src, free := g.Tensor(n, 7)
					return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: free})
				}}, spec},
				Edges: edges,
			}, bus.Options{GPU: g.Options(pool.Options{ArenaBytes: 512 << 10})})
			r, err := b.Submit(t.Context(), "go")
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			results := 0
			for _, err := range r.Results(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				results++
			}
			if results != 1 || tries != 2 {
				t.Errorf("%d results after %d attempts, want 1 after 2", results, tries)
			}
		})
	}
}

// panickingStream is a stream that panics a number of times.
type panickingStream struct {
	cudaipc.Stream
	left *int
}

func (s panickingStream) Submit(ops ...cudaipc.Op) error {
	if *s.left > 0 {
		*s.left--
		panic("half way")
	}
	return s.Stream.Submit(ops...)
}

// TestPanicWhileFillingTensors: after a panic of the tensors' stream, the reservations in
// the store and on the GPU, the credit and the sender's memory are released.
func TestPanicWhileFillingTensors(t *testing.T) {
	for _, transport := range []bus.TensorTransport{bus.TensorsDefault, bus.TensorsIPC, bus.TensorsPool} {
		t.Run(transport.String(), func(t *testing.T) {
			const panics, n = 3, 100 << 10
			g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
			left, made := panics, 0
			var freed atomic.Int32
			first := func(t *bus.Task, _ *bus.Delivery) error {
				src, free := g.Tensor(n, 7)
				made++
				return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{
					Stream: panickingStream{g.Stream, &left}, Release: func() { free(); freed.Add(1) },
				})
			}
			second := func(t *bus.Task, d *bus.Delivery) error {
				m, err := d.Tensors(t.Context())
				if err != nil {
					return err
				}
				return errors.Join(g.Check(t.Context(), m, n, 7), t.Emit("done"))
			}
			b := testbus.Open(t, bus.Pipeline{
				Stages: []bus.StageSpec{{Name: "first", State: bus.StateNone, Attempts: panics + 1, Handle: first}, {Name: "second", Handle: second}},
				Edges:  []bus.Edge{{From: "first", To: "second", Window: 1, Tensors: transport}},
			}, bus.Options{GPU: g.Options(pool.Options{ArenaBytes: 256 << 10, MaxBytes: 256 << 10})}) // for two tensors
			r, err := b.Submit(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			if got, err := testbus.Receive(t, r); err != nil || len(got) != 1 {
				t.Errorf("received %q, %v", got, err)
			}
			mustDrain(t, b)
			if stats := b.Stats().Tensors; stats.Spilt != 0 || stats.Failed != panics {
				t.Errorf("%+v", stats)
			}
			if err := b.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if made != panics+1 {
				t.Errorf("tensors were made %d times", made)
			}
			testbus.Await(t, func() bool { return int(freed.Load()) == made })
		})
	}
}
