package bus_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
)

func opened(t *testing.T, x connector.Exchange, lasting bool) connector.Transport {
	t.Helper()
	e, err := x.OpenExchange(lasting)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestLasting: what is put to last stays when its transport is closed and its
// process has left, for anybody to get, or to clean up; all else goes.
func TestLasting(t *testing.T) {
	h := exchanging(t, bus.Options{})
	n := h.join(t, bus.JoinOptions{ExchangeStore: exchangeStore})
	for _, size := range []int{10, 100_000, 3 << 20} { // in a message, in room, in a segment of its own
		for key, lasting := range map[string]bool{"stays": true, "r1_thinker_0": true, "goes": false} {
			end := opened(t, n, lasting)
			put(t, end, key, block(size, size))
			if err := end.Close(); err != nil {
				t.Fatal(err)
			}
		}
		other := h.exchange(t)
		for _, key := range []string{"stays", "goes"} {
			got, err := other.Get(t.Context(), exchangeEdge, key, nil)
			switch {
			case key == "goes" && errors.Is(err, connector.ErrNotFound):
			case key == "goes" || err != nil || !bytes.Equal(got.Bytes(), block(size, size)):
				t.Errorf("%d bytes: %s: %v", size, key, err)
			default:
				got.Release()
			}
		}
	}
	put(t, opened(t, n, true), "survivor", block(7, 200_000))
	if err := n.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, last := range []connector.Transport{h.exchange(t), opened(t, h.bus, true)} {
		if err := last.Close(); err != nil { // which takes nothing of the others
			t.Fatal(err)
		}
	}
	got, err := h.exchange(t).Get(t.Context(), exchangeEdge, "survivor", nil)
	if err != nil || !bytes.Equal(got.Bytes(), block(7, 200_000)) {
		t.Fatalf("behind a node that left: %v", err)
	}
	got.Release()
	m := h.join(t, bus.JoinOptions{ExchangeStore: exchangeStore})
	own := opened(t, m, false)
	if err := own.Cleanup(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	if e := h.bus.Stats().Exchange.Entries; e != 1 {
		t.Errorf("%d payloads behind a cleanup of somebody else's", e)
	}
	if err := opened(t, m, true).Cleanup(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	h.wantEmpty(t)
}
