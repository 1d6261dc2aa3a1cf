package vllm_test

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/vllm"
)

// A client of the engine core sends a request with a large tensor, which stays
// where it is, in a buffer of its own.
func ExampleEncode() {
	type request struct {
		_msgpack struct{} `msgpack:",as_array"`
		ID       string
		Embeds   codec.Tensor
	}
	embeds, err := codec.FromSlice(make([]float32, 1000), 10, 100)
	if err != nil {
		panic(err)
	}
	buffers, err := vllm.Encode(request{ID: "r1", Embeds: embeds}, vllm.Options{})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%q\n", buffers[0])
	fmt.Println(len(buffers), len(buffers[1]), &buffers[1][0] == &embeds.Data[0])

	var received request
	err = vllm.Decoder{}.Decode(buffers, &received)
	_ = received._msgpack
	fmt.Println(received.ID, received.Embeds, err)
	// Output:
	// "\x92\xa2r1\x93\xa7float32\x92\nd\x01"
	// 2 4000 true
	// r1 float32[10 100] <nil>
}
