package shm

import (
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
)

var ab = connector.Edge{From: "a", To: "b"}

// openOwn opens the only end of this process's ring.
func openOwn(t *testing.T, ringBytes int) *end {
	t.Helper()
	settings, err := Type().Settings(map[string]any{"ring_bytes": ringBytes})
	if err != nil {
		t.Fatal(err)
	}
	opened, err := ownRing.open(connector.Config{Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	e, ok := opened.(*end)
	if !ok {
		t.Fatalf("opened a %T", opened)
	}
	return e
}

// TestCloseDuringPutAndGet closes the last end of the ring during a put and a get: the ring stays
// until they return and the value is released, and is closed then.
func TestCloseDuringPutAndGet(t *testing.T) {
	t.Run("put", func(t *testing.T) {
		e := openOwn(t, 1<<20)
		_, err := e.Put(t.Context(), ab, "k", 1000, func([]byte) error { return e.Close() })
		if !errors.Is(err, connector.ErrClosed) {
			t.Errorf("put: %v, want ErrClosed", err)
		}
	})
	t.Run("get", func(t *testing.T) {
		e := openOwn(t, 2<<20) // a second ring: the first is closed
		if _, err := e.Put(t.Context(), ab, "k", 1000, func([]byte) error { return nil }); err != nil {
			t.Fatal(err)
		}
		got, err := e.getRetained(func() (connector.Payload, error) {
			got, err := e.End.Get(context.Background(), ab, "k", nil)
			return got, errors.Join(err, e.Close())
		})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(got.Bytes()); n != 1000 {
			t.Errorf("got %d bytes", n)
		}
		if _, err := e.Get(t.Context(), ab, "k", nil); !errors.Is(err, connector.ErrClosed) {
			t.Errorf("get from a closed end: %v, want ErrClosed", err)
		}
		got.Release()
	})
	if err := openOwn(t, 4<<20).Close(); err != nil { // as before
		t.Error(err)
	}
}
