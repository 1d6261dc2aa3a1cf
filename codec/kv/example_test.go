package kv_test

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/kv"
)

// A stage hands the cache of one request on: the keys and values go straight
// into reserved memory, and the consumer reads them where they lie.
func Example() {
	keys, err := codec.FromSlice([]float32{1, 2, 3, 4}, 2, 1, 2) // tokens, heads, size of a head
	if err != nil {
		panic(err)
	}
	values, err := codec.FromSlice([]float32{5, 6, 7, 8}, 2, 1, 2)
	if err != nil {
		panic(err)
	}
	cache := kv.Payload{
		RequestID: "chat-1",
		Blocks:    []int64{17},
		Metadata:  map[string]any{"block_size": 16, "seq_len": 2},
		Layers:    []kv.Layer{{Key: &keys, Value: &values}},
	}
	var serializer kv.Serializer
	size, ok := serializer.Size(cache)
	if !ok {
		panic("no frame") // Append says why
	}
	payload := make([]byte, size) // in practice, reserved in a store
	if err := serializer.EncodeInto(payload, cache); err != nil {
		panic(err)
	}

	received, err := codec.Decode[kv.Payload](serializer, payload)
	if err != nil {
		panic(err)
	}
	seen, err := codec.View[float32](*received.Layers[0].Value)
	if err != nil {
		panic(err)
	}
	fmt.Println(received.RequestID, received.Metadata["seq_len"], received.Layers[0].Value, seen)
	// Output: chat-1 2 float32[2 1 2] [5 6 7 8]
}
