package lane_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// onOther makes a payload of the first GPU name the second.
func onOther(payload []byte) []byte {
	first, second := emul.UUID(0), emul.UUID(1)
	return bytes.Replace(payload, first[:], second[:], 1) // the handle contains the UUID once more
}

// TestPlacesOnAnotherGPU: a payload that names another GPU than that of its memory is refused:
// streams of the named GPU cannot read the memory, and an access would end it. A right payload is
// read before and after that.
func TestPlacesOnAnotherGPU(t *testing.T) {
	gpu := emul.Options{Devices: 2, GranularityBytes: 1 << 16, Missing: map[string]string{"Peers": "for a test"}, Apart: true}
	for _, mode := range []lane.Mode{lane.Pool, lane.IPC} {
		for name, forgedFirst := range map[string]bool{"forged first": true, "forged second": false} {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				dir := newDirectory(t)
				from, to := newBench(t, gpu, lane.Options{Directory: dir}), newBench(t, gpu, lane.Options{Directory: dir})
				src, data := from.tensor(codec.DTypeUint8, 4096)
				lease, err := from.store.Local().Take(from.mustSend(src, mode))
				if err != nil {
					t.Fatal(err)
				}
				defer lease.Release()
				forged := func(l *lane.Lane) {
					if m, err := l.Open(t.Context(), onOther(lease.Bytes())); err == nil {
						t.Errorf("it was opened: %v", m.Value())
						_ = m.Close()
					} else if !errors.Is(err, lane.ErrForged) && !errors.Is(err, cudaipc.ErrUnsupported) {
						t.Errorf("%v, want ErrForged or ErrUnsupported", err)
					}
				}
				right := func() {
					m, err := to.lane.Open(t.Context(), lease.Bytes())
					if err != nil {
						t.Fatal(err)
					}
					if got := to.unwrap(m).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
						t.Error("other bytes")
					}
					settled(t, m)
				}
				if !forgedFirst {
					right()
				}
				forged(to.lane)
				right()
				forged(from.lane) // in the process of the memory
			})
		}
	}
}
