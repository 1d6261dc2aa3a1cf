package bus_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestEnvelope: the consumer gets the options of Submit and of the emission in the envelope.
func TestEnvelope(t *testing.T) {
	trace := messages.TraceContext{TraceID: [16]byte{1}, SpanID: [8]byte{2}, Flags: 1}
	deadline := time.Now().Add(time.Hour)
	var got messages.Delivery
	b := testbus.Open(t, testbus.Linear(
		bus.StageSpec{Name: "a", Handle: func(t *bus.Task, _ *bus.Delivery) error {
			if at, ok := t.Context().Deadline(); !ok || !at.Equal(deadline) {
				return errors.New("the handler's context has another deadline")
			}
			return t.EmitBytes([]byte("x"), bus.Key("k"), bus.Attr("lang", "en"), bus.Attr("voice", "deep"))
		}},
		bus.StageSpec{Name: "b", Handle: func(_ *bus.Task, d *bus.Delivery) error {
			got = d.Delivery
			return nil
		}},
	), bus.Options{})
	r, err := b.Submit(t.Context(), "x", bus.WithDeadline(deadline), bus.WithTrace(trace))
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, nil)
	if got.Request != r.ID() || got.Edge != "a->b" || got.Key != "k" || got.Seq != 0 || got.Attempt != 0 ||
		!got.Deadline.Equal(deadline) || got.Trace != trace || got.Attrs["lang"] != "en" || got.Attrs["voice"] != "deep" {
		t.Errorf("envelope: %+v", got)
	}
}

// TestInlineThreshold: payloads up to InlineBytes bypass the store.
func TestInlineThreshold(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
		return errors.Join(t.EmitBytes(make([]byte, 100)), t.EmitBytes(make([]byte, 101)))
	}}), bus.Options{InlineBytes: 100})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	var inline []bool
	for d, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		inline = append(inline, d.Handle.IsZero())
	}
	if len(inline) != 2 || !inline[0] || inline[1] {
		t.Errorf("inline: %v", inline)
	}
	if s := b.Stats(); s.Edges[1].Inline != 1 || s.Store.ReservedTotal == 0 {
		t.Errorf("stats: %+v", s.Edges[1])
	}
}

// TestStallIsReported: after the stall timeout a report names the holder of the
// credit for which a producer waits. The clock is that of synctest.
func TestStallIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan []bus.Stall, 10)
		g := testbus.NewGate()
		p := testbus.Windowed(g, bus.Edge{Window: 1})
		b, err := bus.Open(t.Context(), p, bus.Options{
			Store:        shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap},
			StallTimeout: time.Second,
			OnStall:      func(s []bus.Stall) { reports <- s },
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // synctest's time: the wait does not begin at a check
		r := testbus.StreamOf(t, b)
		for range 3 {
			if err := r.Send(t.Context(), "x"); err != nil {
				t.Fatal(err)
			}
		}
		s := (<-reports)[0]
		if s.Request != r.ID() || s.Edge != "first->second" || s.Deliveries != 1 || !strings.Contains(s.Holder, `stage "second"`) {
			t.Errorf("report: %v", s)
		}
		for i := range 4 { // and again whenever the age has doubled, at most a quarter of the timeout late
			if least := time.Second << i; s.Waited < least || s.Waited > least+time.Second/4 {
				t.Errorf("report %d when it has waited for %v", i, s.Waited)
			}
			s = (<-reports)[0]
		}
		r.Abort(nil)
		if err := b.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestStallNamesTheCaller: the caller is the holder of results that are not received.
func TestStallNamesTheCaller(t *testing.T) {
	p := testbus.Linear(bus.Stage("a", testbus.Upper))
	p.Edges = append(p.Edges, bus.Edge{From: "a", Window: 2})
	b := testbus.Open(t, p, bus.Options{})
	r := testbus.SendAll(t, b, 5)
	s := testbus.WaitForStall(t, b, "a->", 2)
	if !strings.Contains(s.Holder, "the caller") {
		t.Errorf("report: %v", s)
	}
	testbus.MustReceive(t, r, testbus.Numbers(5))
}

func TestTooLittleMemory(t *testing.T) {
	_, err := bus.Open(t.Context(), testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{Store: shmstore.Options{ArenaBytes: 1 << 46}})
	if err == nil || errors.Is(err, bus.ErrConfig) {
		t.Fatalf("64 TiB: %v", err)
	}
	if !errors.Is(err, shmstore.ErrMemory) {
		t.Errorf("got %v", err)
	}
}
