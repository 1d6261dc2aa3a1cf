package lane_test

import (
	"bytes"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestWrappedStreams: tensors are sent after the operations of a wrapped stream of another library,
// and read on one; messages are not released before such streams are done.
func TestWrappedStreams(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	src, data := b.tensor(codec.DTypeUint8, 4096)
	first := b.alloc(4096)
	wrap := func(raw uintptr) cudaipc.Stream {
		s, err := b.dev.WrapStream(raw)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	reader := wrap(cudaipc.LegacyStream)
	defer func() { _ = reader.Close() }()
	theirs := b.s
	resume := holdStream(t, b)
	b.submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: first, Src: src.Ptr, Bytes: 4096}) // they make the tensor
	b.s = wrap(theirs.Raw())
	h := b.mustSend(&lane.Tensor{DType: codec.DTypeUint8, Shape: []int{4096}, Ptr: first}, lane.Pool)
	if err := b.s.Close(); err != nil {
		t.Fatal(err)
	}
	b.s = theirs
	m := b.receive(h)
	out := b.alloc(4096)
	v, err := m.Unwrap(reader, cudaipc.UUID{}, func(int64) (cudaipc.Ptr, error) { return out, nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	resume()
	settled(t, m)
	b.sync(reader)
	if !bytes.Equal(b.read(v.(*lane.Tensor)), data) {
		t.Error("other bytes")
	}
}
