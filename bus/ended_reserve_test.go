package bus

import (
	"errors"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// echoBus is a bus whose results are its inputs, in its store.
func echoBus(t *testing.T) *Bus {
	t.Helper()
	b, err := Open(t.Context(), Pipeline{
		Stages: []StageSpec{{Name: "echo", State: StateNone, Handle: func(t *Task, d *Delivery) error { return t.Forward(d) }}},
		Edges:  []Edge{{To: "echo"}, {From: "echo"}},
	}, Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestReserveFailsForEndedRequest: an emission that has credit, and whose request has ended since, gets no
// space: a lost host may still be reading payloads that were released at the end.
func TestReserveFailsForEndedRequest(t *testing.T) {
	b := echoBus(t)
	r, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 10
	e := r.Input(t.Context())
	buf := Buffer{e: e, codec: codec.IDRaw, size: size, price: b.price(size)}
	if err := buf.admit(); err != nil {
		t.Fatal(err)
	}
	r.Abort(errors.New("the host is gone"))
	if err := buf.reserveSpace(); !errors.Is(err, ErrAborted) {
		buf.Abort() // so that the bus closes
		t.Fatalf("the emission gets space: %v", err)
	}
	buf.giveCredit()
	r.Close()
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// heldInStore holds a payload in the store of a bus, of a request that is forgotten.
func heldInStore(t *testing.T, b *Bus) *payload {
	t.Helper()
	r, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Input(t.Context()).EmitBytes(make([]byte, 2*DefaultInlineBytes), Last()); err != nil {
		t.Fatal(err)
	}
	d, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held := d.holdPayload()
	if err := d.Finish(nil); err != nil {
		t.Fatal(err)
	}
	r.Close()
	return held
}

// TestSpillNeedsMemory: a payload that no window bounds is refused if neither the store nor the
// machine has memory for it.
func TestSpillNeedsMemory(t *testing.T) {
	b := &Buffer{size: 1 << 56, unbounded: true}
	if err := b.spill(); !errors.Is(err, shmstore.ErrMemory) {
		t.Errorf("2^56 bytes: %v", err)
	}
	b.size = 1
	if err := b.spill(); err != nil || len(b.heap) != 1 {
		t.Errorf("a byte: %v", err)
	}
}

// TestCloseReportsUnreleasedPayload: the error of Close for an unreleased payload is ErrNotClean.
func TestCloseReportsUnreleasedPayload(t *testing.T) {
	b := echoBus(t)
	held := heldInStore(t, b)
	if err := b.Close(t.Context()); !errors.Is(err, ErrNotClean) || !strings.Contains(err.Error(), "payloads were not given back") {
		t.Errorf("closed with a payload held: %v", err)
	}
	held.Release()
}
