package emul_test

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// TestReopen: the last Close of a device gives back what was left on it.
func TestReopen(t *testing.T) {
	b := newBench(t, emul.Options{})
	p := b.alloc(4096)
	if err := b.dev.Close(); err != nil {
		t.Fatal(err)
	}
	if u := b.driver.Usage(); u != (emul.Usage{}) {
		t.Errorf("closed, and yet %+v", u)
	}
	dev, err := b.driver.Open(cudaipc.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	if err := dev.Free(p); !errors.Is(err, cudaipc.ErrInvalid) {
		t.Errorf("free what was made before: %v", err)
	}
	if _, err := dev.RegisterHost(b.mem, false); err != nil {
		t.Errorf("register memory again: %v", err)
	}
	if _, err := b.dev.NewStream(); !errors.Is(err, cudaipc.ErrClosed) {
		t.Errorf("a stream of the opening before: %v", err)
	}
}

// TestOwnHandleFreed: one's own handle is stale when the memory was freed.
func TestOwnHandleFreed(t *testing.T) {
	b := newBench(t, emul.Options{})
	p := b.alloc(4096)
	h, _, err := b.dev.Export(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.dev.Free(p); err != nil {
		t.Fatal(err)
	}
	if _, err := b.dev.Import(h); !errors.Is(err, cudaipc.ErrStaleHandle) {
		t.Errorf("import one's own handle of freed memory: %v", err)
	}
}

// TestCloseWhileAwaiting: a device does not wait for another one to be closed.
func TestCloseWhileAwaiting(t *testing.T) {
	b := newBench(t, emul.Options{Devices: 2})
	other, err := b.driver.Open(emul.UUID(1))
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.dev.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	s, err := other.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	w := b.host.Word(0)
	err = errors.Join(
		b.stream.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: w, Value: 1}, cudaipc.Op{Kind: cudaipc.OpRecord, Event: e}),
		s.Submit(cudaipc.Op{Kind: cudaipc.OpAwait, Event: e}),
		other.Close(),
	)
	if err != nil {
		t.Error(err)
	}
	if done, err := e.Done(); done || err != nil {
		t.Errorf("the event is done: %t, %v", done, err)
	}
	w.Host.Store(1)
	if err := b.stream.Synchronize(t.Context()); err != nil {
		t.Error(err)
	}
}
