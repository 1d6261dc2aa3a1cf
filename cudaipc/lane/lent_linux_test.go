package lane_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestLentBuffersAreBounded: a payload with a buffer of this process, whose address is known,
// cannot reach beyond the memory that was sent.
func TestLentBuffersAreBounded(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	src, _ := b.tensor(codec.DTypeUint8, 4096)
	lease, err := b.store.Local().Take(b.mustSend(src, lane.IPC))
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	const offset = 32 + 48 // of the first place, see codec/bundle
	at := binary.LittleEndian.Uint64(lease.Bytes()[offset:])
	for _, further := range []uint64{1, 1 << 30, 1 << 62} {
		forged := bytes.Clone(lease.Bytes())
		binary.LittleEndian.PutUint64(forged[offset:], at+further)
		if m, err := b.lane.Open(t.Context(), forged); !errors.Is(err, lane.ErrForged) {
			t.Errorf("%d bytes further: %v, %v; want ErrForged", further, m, err)
		}
	}
	m, err := b.lane.Open(t.Context(), lease.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
