package bus_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// carrier is a transport for an edge that fails on demand. It must be empty at
// the end of the test.
type carrier struct {
	*ring.End
	ring  *ring.Ring
	lose  bool  // a put value is cleaned up at once
	full  error // the error of a put
	puts  int
	edges map[connector.Edge]bool
	keys  map[string]int // how often each was put
}

func newCarrier(t testing.TB) *carrier {
	t.Helper()
	r, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // runs after the cleanup of the bus, which is registered later
		if err := r.Close(); err != nil {
			t.Errorf("payloads are left in the connector: %v", err)
		}
	})
	return &carrier{End: r.End(), ring: r, edges: make(map[connector.Edge]bool), keys: make(map[string]int)}
}

func (c *carrier) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func([]byte) error) (connector.Metadata, error) {
	if c.full != nil {
		return nil, c.full
	}
	c.puts++
	c.keys[key]++
	c.edges[edge] = true
	meta, err := c.End.Put(ctx, edge, key, size, fill)
	if err == nil && c.lose {
		err = c.Cleanup(ctx, key)
	}
	return meta, err
}

func (c *carrier) connector() *connector.Connector { return connector.New("Test", c, nil) }

// plain is a connector that records nothing.
func (c *carrier) plain() *connector.Connector { return connector.New("Test", c.End, nil) }

// text is a payload of the given size, different for each i.
func text(i, size int) string { return strings.Repeat(fmt.Sprintf("%08d", i), size/8) }

// TestCarriedEdge: payloads of every size travel by the connector of one edge and
// by the store on another, from the same emission.
func TestCarriedEdge(t *testing.T) {
	c := newCarrier(t)
	fan := bus.Stage("fan", func(_ *bus.Task, in string) (string, error) { return in, nil })
	p := bus.Pipeline{
		Stages: []bus.StageSpec{fan, bus.Stage("left", testbus.Upper), bus.Stage("right", testbus.Upper)},
		Edges:  []bus.Edge{{From: "fan", To: "left", Connector: c.connector()}, {From: "fan", To: "right"}},
	}
	b := testbus.Open(t, p, bus.Options{})
	sizes := []int{8, 400, 4000, 60_000}
	r := testbus.StreamOf(t, b)
	want := make(map[string]int)
	for i, size := range sizes {
		if err := r.Send(t.Context(), text(i, size)); err != nil {
			t.Fatal(err)
		}
		want[text(i, size)] = 2
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := testbus.Receive(t, r)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int)
	for _, s := range all {
		got[s]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !c.edges[connector.Edge{From: "fan", To: "left"}] || c.puts != len(sizes) {
		t.Errorf("%d puts on %v", c.puts, c.edges)
	}
	stats := b.Stats().Edges[0]
	if stats.Connector == nil || stats.Connector.Gets != uint64(len(sizes)) || stats.Bytes == 0 {
		t.Errorf("the edge's figures: %+v", stats)
	}
	if stats.Transfers.Sending <= 0 || stats.Transfers.Receiving <= 0 {
		t.Errorf("the times of transfers are missing: %+v", stats.Transfers)
	}
}

// TestCarriedKeys: payloads of all edges, requests and buses have different keys,
// because for some transports the key alone addresses a value.
func TestCarriedKeys(t *testing.T) {
	c := newCarrier(t)
	for range 2 {
		p := bus.Pipeline{
			Stages: []bus.StageSpec{bus.Stage("fan", testbus.Upper), bus.Stage("left", testbus.Upper), bus.Stage("right", testbus.Upper)},
			Edges:  []bus.Edge{{From: "fan", To: "left", Connector: c.connector()}, {From: "fan", To: "right", Connector: c.connector()}},
		}
		b := testbus.Open(t, p, bus.Options{})
		for i := range 2 {
			r, err := b.Submit(t.Context(), text(i, 8))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := testbus.Receive(t, r); err != nil {
				t.Fatal(err)
			}
		}
	}
	if c.puts != 8 || len(c.keys) != 8 {
		t.Errorf("%d puts under %d keys: %v", c.puts, len(c.keys), c.keys)
	}
}

// TestCarriedPayloadIsMissing: the request ends at once, and the error names the
// edge, the key and the receiving stage.
func TestCarriedPayloadIsMissing(t *testing.T) {
	c := newCarrier(t)
	c.lose = true
	p := testbus.Linear(bus.Stage("first", testbus.Upper), bus.Stage("second", testbus.Upper))
	p.Edges[0].Connector = c.connector()
	b := testbus.Open(t, p, bus.Options{})
	r, err := b.Submit(t.Context(), text(1, 4000))
	if err != nil {
		t.Fatal(err)
	}
	_, err = testbus.Receive(t, r)
	var at *bus.StageError
	if !errors.Is(err, bus.ErrMissing) || !errors.As(err, &at) || at.Stage != "second" || at.Edge != "first->second" ||
		!strings.Contains(err.Error(), "_first_0") {
		t.Errorf("the request ended with %v", err)
	}
}

func TestCarriedPayloadCannotBePut(t *testing.T) {
	c := newCarrier(t)
	c.full = connector.ErrFull
	p := bus.Pipeline{
		Stages: []bus.StageSpec{bus.Stage("fan", testbus.Upper), bus.Stage("left", testbus.Upper), bus.Stage("mid", testbus.Upper), bus.Stage("right", testbus.Upper)},
		Edges:  []bus.Edge{{From: "fan", To: "left"}, {From: "fan", To: "mid", Connector: c.connector()}, {From: "fan", To: "right"}},
	}
	for _, size := range []int{8, 4000} {
		b := testbus.Open(t, p, bus.Options{})
		r, err := b.Submit(t.Context(), text(1, size))
		if err != nil {
			t.Fatal(err)
		}
		_, err = testbus.Receive(t, r)
		var at *bus.StageError
		if !errors.Is(err, connector.ErrFull) || !errors.As(err, &at) || at.Stage != "fan" {
			t.Errorf("%d bytes: the request ended with %v", size, err)
		}
	}
}

// TestCarriedAndAborted: a payload that was put and not received is reclaimed with its request.
func TestCarriedAndAborted(t *testing.T) {
	c := newCarrier(t)
	handling := make(chan *bus.Request)
	p := testbus.Linear(bus.Stage("first", testbus.Upper), bus.StageSpec{Name: "second", Handle: func(task *bus.Task, _ *bus.Delivery) error {
		handling <- nil
		<-task.Context().Done()
		return nil
	}})
	p.Edges[0].Connector = c.connector()
	b := testbus.Open(t, p, bus.Options{})
	r := testbus.StreamOf(t, b)
	for i := range 10 {
		if err := r.Send(t.Context(), text(i, 4000)); err != nil {
			t.Fatal(err)
		}
	}
	<-handling
	testbus.Await(t, func() bool { return c.ring.Stats().Entries > 0 }) // at least one is to be reclaimed unhandled
	r.Abort(nil)
	if _, err := testbus.Receive(t, r); !errors.Is(err, bus.ErrAborted) {
		t.Errorf("the request ended with %v", err)
	}
	if err := b.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := c.ring.Stats().Entries; n > 0 { // before the bus closes the connector
		t.Errorf("%d payloads are left in the connector", n)
	}
}

// TestTensorsBesideAConnector: an edge with a connector refuses other transports of tensors.
func TestTensorsBesideAConnector(t *testing.T) {
	p := testbus.Linear(bus.Stage("first", testbus.Upper), bus.Stage("second", testbus.Upper))
	p.Edges[0].Connector, p.Edges[0].Tensors = newCarrier(t).connector(), bus.TensorsPool
	if _, err := bus.Open(t.Context(), p, bus.Options{}); !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), "Tensors is cuda_ipc_pool") {
		t.Errorf("opened: %v", err)
	}
}

func TestConnectorOfTheCaller(t *testing.T) {
	c := newCarrier(t)
	p := testbus.Linear(bus.Stage("first", testbus.Upper))
	p.Edges = append(p.Edges, bus.Edge{To: "first", Connector: c.connector()})
	if _, err := bus.Open(t.Context(), p, bus.Options{}); !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), "between two stages") {
		t.Errorf("opened: %v", err)
	}
	if _, err := c.Get(t.Context(), connector.Edge{}, "key", nil); !errors.Is(err, connector.ErrClosed) {
		t.Errorf("the connector of a bus that was not opened: %v, want it closed", err)
	}
}

// BenchmarkCarriedEdge sends payloads through two stages, with a connector on
// the edge between them.
func BenchmarkCarriedEdge(b *testing.B) {
	forward := func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }
	for _, size := range []int{64, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := testbus.Linear(bus.StageSpec{Name: "a", Handle: forward}, bus.StageSpec{Name: "b", Handle: forward})
			p.Edges[0].Connector = newCarrier(b).plain()
			r, err := testbus.Open(b, p, bus.Options{}).Stream(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			payload := make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				if err := r.Input(b.Context()).EmitBytes(payload); err != nil {
					b.Fatal(err)
				}
				d, err := r.Recv(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				_ = d.Finish(nil)
			}
		})
	}
}
