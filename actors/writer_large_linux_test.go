package actors_test

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestWriterRefusesWithoutMemory: a large object for which there is no memory is refused,
// and leaves no reservation.
func TestWriterRefusesWithoutMemory(t *testing.T) {
	const tooMuch = 1 << 45
	h := newHost(t, shmstore.Options{Memory: shmstore.Shared, ArenaBytes: 64 << 10, LargeObjectBytes: 16 << 10, MaxLargeBytes: tooMuch})
	if _, err := h.Reserve(nil, nil, nil, 1, tooMuch, codec.IDRaw); !errors.Is(err, shmstore.ErrMemory) {
		t.Errorf("error %v, want %v", err, shmstore.ErrMemory)
	}
	if st := h.stats(t); st.Reserved != 0 {
		t.Errorf("%d reservations are left", st.Reserved)
	}
}
