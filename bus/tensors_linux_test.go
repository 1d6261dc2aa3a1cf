package bus_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestTensorsThroughStages sends tensors on a GPU through two stages: the first
// forwards them, and emits further ones.
func TestTensorsThroughStages(t *testing.T) {
	for _, transport := range []bus.TensorTransport{bus.TensorsDefault, bus.TensorsIPC, bus.TensorsPool} {
		t.Run(transport.String(), func(t *testing.T) {
			g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
			const n, messages = 100 << 10, 40
			first := func(t *bus.Task, d *bus.Delivery) error {
				src, free := g.Tensor(n, d.Bytes()[len(d.Bytes())-1])
				if err := t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: free}, bus.To("second")); err != nil {
					return err
				}
				return nil
			}
			second := func(t *bus.Task, d *bus.Delivery) error {
				m, err := d.Tensors(t.Context())
				if err != nil {
					return err
				}
				if want := transport != bus.TensorsDefault; m.OnDevice() != want {
					return errors.New("it came another way")
				}
				return t.Forward(d)
			}
			third := func(t *bus.Task, d *bus.Delivery) error {
				m, err := d.Tensors(t.Context())
				if err != nil {
					return err
				}
				if err := g.Check(t.Context(), m, n, byte(d.Seq)); err != nil {
					return err
				}
				return t.EmitBytes([]byte("well"))
			}
			b := testbus.Open(t, bus.Pipeline{
				Stages: []bus.StageSpec{{Name: "first", Handle: first}, {Name: "second", Handle: second}, {Name: "third", Handle: third}},
				Edges:  []bus.Edge{{From: "first", To: "second", Tensors: transport}, {From: "second", To: "third"}},
			}, bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20}, GPU: g.Options(pool.Options{ArenaBytes: 512 << 10, MaxBytes: 512 << 10})})
			r := testbus.StreamOf(t, b)
			for i := range messages {
				if err := r.Send(t.Context(), []byte{byte(i)}); err != nil {
					t.Fatal(err)
				}
				d, err := r.Recv(t.Context())
				if err != nil {
					t.Fatalf("message %d: %v", i, err)
				}
				if err := d.Finish(nil); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, err := range r.Results(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// TestTensorsOnEdgesOfTwoTransports: one emission goes to each edge by the edge's transport, and
// Release of the tensors is called once, also after an error.
func TestTensorsOnEdgesOfTwoTransports(t *testing.T) {
	g := testbus.NewGPU(t, emul.Options{})
	const n = 100 << 10
	began, emitted, released := make(chan struct{}), make(chan error, 1), make(chan struct{}, 10)
	emit := func(t *bus.Task, opts ...bus.EmitOption) {
		src, free := g.Tensor(n, 7)
		emitted <- t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: func() { free(); released <- struct{}{} }}, opts...)
	}
	p := bus.Pipeline{Stages: []bus.StageSpec{{Name: "make", Handle: func(t *bus.Task, d *bus.Delivery) error {
		switch d.Key {
		case "nowhere":
			emit(t, bus.To("nowhere"))
		case "late":
			began <- struct{}{}
			<-t.Context().Done()
			emit(t)
		default:
			emit(t)
		}
		return nil
	}}}}
	for _, transport := range []bus.TensorTransport{bus.TensorsDefault, bus.TensorsIPC, bus.TensorsPool} {
		name := transport.String()
		p.Stages = append(p.Stages, bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error {
			m, err := d.Tensors(t.Context())
			if err != nil {
				return err
			}
			if m.OnDevice() != (transport != bus.TensorsDefault) {
				return fmt.Errorf("on a GPU: %t", m.OnDevice())
			}
			return errors.Join(g.Check(t.Context(), m, n, 7), t.EmitBytes([]byte(name)))
		}})
		p.Edges = append(p.Edges, bus.Edge{From: "make", To: name, Tensors: transport})
	}
	b := testbus.Open(t, p, bus.Options{Store: shmstore.Options{ArenaBytes: 32 << 20}, GPU: g.Options(pool.Options{})})
	for _, c := range []struct {
		key  string
		want error
	}{{"all", nil}, {"nowhere", bus.ErrNoEdge}, {"late", bus.ErrAborted}} {
		r, err := b.Stream(t.Context())
		if err == nil {
			err = r.Input(t.Context()).EmitBytes([]byte("go"), bus.Key(c.key), bus.Last())
		}
		if err != nil {
			t.Fatal(err)
		}
		if c.key == "late" {
			<-began
			r.Abort(nil)
		}
		if err := <-emitted; !errors.Is(err, c.want) {
			t.Errorf("%s: emitted: %v, want %v", c.key, err, c.want)
		}
		results := 0
		for d, err := range r.Results(t.Context()) {
			if err != nil {
				if c.want == nil {
					t.Errorf("%s: %v", c.key, err)
				}
				break
			}
			results++
			if err := d.Finish(nil); err != nil {
				t.Error(err)
			}
		}
		if want := map[string]int{"all": 3}[c.key]; results != want {
			t.Errorf("%s: %d results, want %d", c.key, results, want)
		}
		<-released
		r.Close()
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if more := len(released); more != 0 {
		t.Errorf("Release was called %d times too often", more)
	}
}

// TestDeviceTensorsAreNotCopied: a payload with tensors in GPU memory is copied neither
// to a connector nor to another bus.
func TestDeviceTensorsAreNotCopied(t *testing.T) {
	g := testbus.NewGPU(t, emul.Options{})
	other := testbus.Open(t, bus.Pipeline{Stages: []bus.StageSpec{{Name: "there", Handle: func(*bus.Task, *bus.Delivery) error { return nil }}}}, bus.Options{})
	errs := make(chan error, 2)
	b := testbus.Open(t, bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "first", Handle: func(t *bus.Task, _ *bus.Delivery) error {
				src, free := g.Tensor(4096, 7)
				return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: free})
			}},
			{Name: "second", Handle: func(t *bus.Task, d *bus.Delivery) error {
				errs <- t.Forward(d)
				r, err := other.Stream(t.Context())
				if err != nil {
					return err
				}
				errs <- r.Input(t.Context()).Forward(d)
				r.Close()
				return nil
			}},
			{Name: "third", Handle: func(*bus.Task, *bus.Delivery) error { return errors.New("it arrived") }},
		},
		Edges: []bus.Edge{{From: "first", To: "second", Tensors: bus.TensorsPool}, {From: "second", To: "third", Connector: newCarrier(t).plain()}},
	}, bus.Options{GPU: g.Options(pool.Options{})})
	r, err := b.Submit(t.Context(), "go")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, bus.ErrPayload) {
			t.Errorf("forward: %v, want ErrPayload", err)
		}
	}
	r.Close()
}

// TestBatchTensorsOfEndedRequest: an emission of a stage that serves many requests
// succeeds without effect when its request is over, also if that ends while a GPU copies.
func TestBatchTensorsOfEndedRequest(t *testing.T) {
	const n = 10 << 10
	var emitting atomic.Bool
	copying, letGo := make(chan struct{}), make(chan struct{})
	g := testbus.NewGPU(t, emul.Options{Delay: func(s emul.Step) time.Duration {
		if s.Kind == cudaipc.OpCopy && emitting.CompareAndSwap(true, false) {
			close(copying)
			<-letGo
		}
		return 0
	}})
	freed, emitted := make(chan struct{}), make(chan error, 1)
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "batch", State: bus.StateNone, Batch: func(batch []*bus.Delivery) error {
		src, free := g.Tensor(n, 1)
		emitting.Store(true)
		err := batch[0].Task().EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: func() { free(); close(freed) }})
		emitted <- err
		return err
	}}), bus.Options{GPU: g.Options(pool.Options{})})
	r := testbus.StreamOf(t, b)
	if err := r.Send(t.Context(), "x"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-copying:
	case err := <-emitted:
		t.Fatalf("the emission ended before it copied: %v", err)
	}
	r.Abort(nil)
	close(letGo)
	if err := <-emitted; err != nil {
		t.Errorf("the emission failed: %v", err)
	}
	<-freed
}
