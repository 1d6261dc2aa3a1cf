package bus_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
)

// TestShelfRoomWithoutTheHost: what was read makes room, although nobody has told the host.
func TestShelfRoomWithoutTheHost(t *testing.T) {
	t.Run("of a node", func(t *testing.T) {
		h := &hosted{path: t.TempDir() + "/bus.sock"}
		cmd := h.hostAlone(t)
		from, to := h.exchange(t), h.exchange(t)
		onShelf(t, from, to)
		stopProcess(t, cmd.Process)
		roomFromReaders(t, from, to)
	})
	t.Run("of the host", func(t *testing.T) {
		h := exchanging(t, bus.Options{ExchangeStore: exchangeStore})
		from, to := h.bus.Exchange(), h.exchange(t)
		onShelf(t, from, to)
		h.wantEmpty(t)
		roomFromReaders(t, from, to)
	})
}

// roomFromReaders fills the room of one end, and has the other give all of it back, and say
// so to nobody.
func roomFromReaders(t *testing.T, from, to connector.Transport) {
	const all = 3
	large := make([]byte, 2<<20-1000) // of 8 MiB; what is larger than a quarter lies elsewhere
	var got []connector.Payload
	for i := range all {
		key := fmt.Sprint("room", i)
		got = append(got, getBy(t, to, key, putAs(t, from, key, large)))
	}
	put := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := from.Put(ctx, exchangeEdge, "more", len(large), filled(large))
		return err
	}
	for put() == nil { // until it is full
	}
	resume := bus.PauseTelling(to)
	var giving sync.WaitGroup
	for _, p := range got {
		giving.Go(p.Release)
	}
	bus.Await(t, func() bool { return put() == nil })
	resume()
	giving.Wait()
}

// laterOnShelf hands values over until they lie on a shelf that both ends know, and the one
// that puts tells the host later.
func laterOnShelf(t *testing.T, from, to connector.Transport) {
	t.Helper()
	bus.Await(t, func() bool {
		onShelf(t, from, to)
		return bus.TellsLater(from)
	})
}

// TestShelfToldLater: values that the host is told of later are found by their key all the
// same, by who asks and by who waits; who takes them back does, and what died with its
// process is not waited for.
func TestShelfToldLater(t *testing.T) {
	const rounds = 50
	h := exchanging(t, bus.Options{})
	from, to := h.exchange(t), h.exchange(t)
	for i := range rounds {
		key := fmt.Sprint("key", i)
		laterOnShelf(t, from, to)
		putAs(t, from, key, payloadOf("large"))
		getBy(t, to, key, nil).Release()

		laterOnShelf(t, from, to)
		got := make(chan error)
		go func() {
			p, err := to.Await(context.Background(), exchangeEdge, key, nil)
			if err == nil {
				p.Release()
			}
			got <- err
		}()
		putAs(t, from, key, payloadOf("large"))
		if err := <-got; err != nil {
			t.Fatal(err)
		}

		laterOnShelf(t, from, to)
		meta := putAs(t, from, key, payloadOf("large"))
		if err := from.Cleanup(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if p, err := to.Get(t.Context(), exchangeEdge, key, meta); !errors.Is(err, connector.ErrNotFound) {
			t.Errorf("what was taken back is there, %v", err)
			p.Release()
		}
	}
	h.wantEmpty(t)
	if err := from.Close(); err != nil {
		t.Error(err)
	}
	wantNothing(t, to, "key0")
}
