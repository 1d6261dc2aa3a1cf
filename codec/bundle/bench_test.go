package bundle_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
)

// benchValue is a step between stages: its tensors are on a device.
func benchValue() map[string]any {
	hidden := &device{dtype: codec.DTypeBFloat16, shape: []int{1, 128, 4096}}
	mask := &device{dtype: codec.DTypeBool, shape: []int{1, 128}}
	return map[string]any{"request": "request-0123456789", "step": 17, "hidden": hidden, "mask": mask, "finished": false}
}

func encodePlaced(b *testing.B, v any, dst []byte) []byte {
	p, err := bundle.NewPlan(v)
	if err != nil {
		b.Fatal(err)
	}
	p.Places = []bundle.Place{{Kind: bundle.PlacePool, Bytes: 2 << 20}}
	for i := range p.Tensors {
		p.Tensors[i].Place = 1
	}
	n, err := p.Size()
	if err != nil {
		b.Fatal(err)
	}
	if err := p.EncodeInto(dst[:n]); err != nil {
		b.Fatal(err)
	}
	return dst[:n]
}

func BenchmarkEncodePlaced(b *testing.B) {
	v, dst := benchValue(), make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		encodePlaced(b, v, dst)
	}
}

func BenchmarkDecodePlaced(b *testing.B) {
	payload := encodePlaced(b, benchValue(), make([]byte, 4096))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := codec.Decode[any](bundle.Serializer{}, payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEncodeInto(b *testing.B) {
	v := map[string]any{"request": "r", "hidden": codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{1 << 18}, Data: make([]byte, 1<<20)}}
	n, _ := bundle.Serializer{}.Size(v)
	dst := make([]byte, n)
	b.SetBytes(int64(n))
	b.ReportAllocs()
	for b.Loop() {
		if err := (bundle.Serializer{}).EncodeInto(dst, v); err != nil {
			b.Fatal(err)
		}
	}
}
