package emul_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// TestReopen: the last Close of a device releases its objects.
func TestReopen(t *testing.T) {
	b := newBench(t, emul.Options{})
	p := b.alloc(4096)
	if err := b.dev.Close(); err != nil {
		t.Fatal(err)
	}
	if u := b.driver.Usage(); u != (cudaipc.Usage{}) {
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

// TestOwnHandleFreed: a handle of this process is stale after the memory was freed.
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
	if _, _, err := b.dev.Import(h); !errors.Is(err, cudaipc.ErrStaleHandle) {
		t.Errorf("import one's own handle of freed memory: %v", err)
	}
}

// TestCloseWithWork: Close ends all waits.
func TestCloseWithWork(t *testing.T) {
	b := newBench(t, emul.Options{Delay: func(s emul.Step) time.Duration {
		if s.Kind == cudaipc.OpCopy {
			return time.Hour
		}
		return 0
	}})
	slow, err := b.dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	third, err := b.dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.dev.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		b.stream.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: b.host.Word(0), Value: 1}, cudaipc.Op{Kind: cudaipc.OpRecord, Event: e}),
		slow.Submit(copying(b.host.Ptr(8), b.host.Ptr(0), 8)),
		third.Submit(cudaipc.Op{Kind: cudaipc.OpAwait, Event: e}),
		third.Close(),
	)
	if err != nil {
		t.Fatal(err)
	}
	answers := make(chan error)
	for _, s := range []cudaipc.Stream{b.stream, slow} {
		go func() { answers <- s.Synchronize(context.Background()) }()
	}
	if err := b.driver.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-answers; !errors.Is(err, cudaipc.ErrClosed) {
			t.Errorf("Synchronize, when the device was closed: %v", err)
		}
	}
}

// TestCloseWhileAwaiting: the Close of a device does not wait for an event of another device.
func TestCloseWhileAwaiting(t *testing.T) {
	awaiting := make(chan struct{})
	b := newBench(t, emul.Options{Devices: 2, Fault: func(s emul.Step) error {
		if s.Kind == cudaipc.OpAwait {
			close(awaiting)
		}
		return nil
	}})
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
	)
	if err != nil {
		t.Fatal(err)
	}
	<-awaiting
	if err := other.Close(); err != nil {
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

// TestBreakWhileBusy: calls that submit or wait when a device fails return its error, in any order.
func TestBreakWhileBusy(t *testing.T) {
	for range 50 {
		b := newBench(t, emul.Options{})
		answers := make(chan error)
		for range 3 {
			s, err := b.dev.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				for {
					err := s.Submit(copying(b.host.Ptr(64), b.host.Ptr(0), 8))
					if err == nil {
						err = s.Synchronize(t.Context())
					}
					if err != nil {
						answers <- err
						return
					}
				}
			}()
		}
		if err := b.driver.Break(emul.UUID(0), errors.New("broken")); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := <-answers; !errors.Is(err, cudaipc.ErrSticky) {
				t.Errorf("%v, want ErrSticky", err)
			}
		}
	}
}
