package bundle_test

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
)

// A value whose tensors are copied into the payload, or stay in the memory of a
// device.
func ExampleNewPlan() {
	hidden := &onDevice{dtype: codec.DTypeFloat32, shape: []int{2, 3}}
	cache := &onDevice{dtype: codec.DTypeFloat16, shape: []int{32, 128}}
	p, err := bundle.NewPlan(map[string]any{"request": "r-1", "hidden": hidden, "cache": cache})
	if err != nil {
		panic(err)
	}
	p.Places = []bundle.Place{{Kind: bundle.PlacePool, Bytes: 8192}}
	for i := range p.Tensors {
		if t := &p.Tensors[i]; t.Source == cache {
			t.Place = 1
		}
	}
	size, err := p.Size()
	if err != nil {
		panic(err)
	}
	payload := make([]byte, size) // of a reservation, usually
	if err := p.EncodeInto(payload); err != nil {
		panic(err)
	}
	for i := range p.Tensors {
		if t := &p.Tensors[i]; t.Source == hidden {
			clear(t.Data) // copied from the device
		}
	}

	v, err := codec.Decode[map[string]any](bundle.Serializer{}, payload)
	if err != nil {
		panic(err)
	}
	fmt.Println(v["request"], v["hidden"], v["cache"])
	// Output: r-1 float32[2 3] float16[32 128] in place 1
}

// onDevice is a tensor whose bytes are not in this process's memory.
type onDevice struct {
	dtype codec.DType
	shape []int
}

func (d *onDevice) TensorType() (codec.DType, []int) { return d.dtype, d.shape }
