package shmstore

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/omni"
)

// TestPutValueInPlace puts a map with a large tensor: it is encoded into the
// arena and read from there, with no copy of the tensor anywhere else.
func TestPutValueInPlace(t *testing.T) {
	const size = 1 << 20
	serializers := codec.Default()
	if err := serializers.Register(omni.Serializer{}); err != nil {
		t.Fatal(err)
	}
	s := create(t, Options{Memory: Heap, ArenaBytes: 4 * size, LargeObjectBytes: 4 * size, Serializer: omni.Serializer{}})
	value := map[string]any{"embed": codec.Tensor{DType: codec.DTypeInt8, Shape: []int{size}, Data: content(size, 1)}}

	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	h, err := s.PutValue("", value, Readers(0))
	if err != nil {
		t.Fatal(err)
	}
	l := mustLease(t, s.Local().Take, h)
	defer l.Release()
	var got map[string]codec.Tensor
	if err := l.ValueBy(serializers, &got); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > size/8 {
		t.Errorf("%d bytes there and back allocated %d", size, allocated)
	}
	data, payload := got["embed"].Data, l.Bytes()
	if len(data) != size || &data[size-1] != &payload[len(payload)-1] {
		t.Error("the tensor is no view of the object")
	}
	wantBytes(t, s.Local().Pin, h, payload)
	if !bytes.Equal(data, content(size, 1)) {
		t.Error("the tensor has changed")
	}
}
