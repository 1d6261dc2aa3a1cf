package codec_test

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
)

// A producer computes straight into reserved memory, and a consumer reads
// from it: the data of the tensor is never copied.
func ExampleNewTensorIn() {
	size, err := codec.TensorSize(codec.DTypeFloat32, 2, 3)
	if err != nil {
		panic(err)
	}
	payload := make([]byte, size) // in practice, reserved in a store

	tensor, err := codec.NewTensorIn(payload, codec.DTypeFloat32, 2, 3)
	if err != nil {
		panic(err)
	}
	values, err := codec.View[float32](tensor)
	if err != nil {
		panic(err)
	}
	for i := range values {
		values[i] = float32(i) / 2
	}

	received, err := codec.ViewTensor(payload)
	if err != nil {
		panic(err)
	}
	seen, err := codec.View[float32](received)
	if err != nil {
		panic(err)
	}
	fmt.Println(received, seen)
	fmt.Println("same memory:", &seen[0] == &values[0])
	// Output:
	// float32[2 3] [0 0.5 1 1.5 2 2.5]
	// same memory: true
}

// A sender encodes in place where the serializer knows the size, and appends
// otherwise.
func ExampleSizer() {
	reserve := func(n int) []byte { return make([]byte, n) } // in practice, in a store
	encode := func(s codec.Serializer, v any) ([]byte, error) {
		if sizer, ok := s.(codec.Sizer); ok {
			if n, ok := sizer.Size(v); ok {
				payload := reserve(n)
				return payload, sizer.EncodeInto(payload, v)
			}
		}
		return s.Append(nil, v)
	}
	for _, s := range []codec.Serializer{codec.RawSerializer{}, codec.MsgpackSerializer{}} {
		payload, err := encode(s, "hello")
		fmt.Printf("%s: %q %v\n", s.Name(), payload, err)
	}
	// Output:
	// raw: "hello" <nil>
	// msgpack: "\xa5hello" <nil>
}

func ExampleDecode() {
	type step struct {
		Request string
		Tokens  []int32
	}
	payload, err := codec.MsgpackSerializer{}.Append(nil, step{"r1", []int32{1, 2, 3}})
	if err != nil {
		panic(err)
	}
	got, err := codec.Decode[step](codec.MsgpackSerializer{}, payload)
	fmt.Println(got, err)

	// Five bytes that declare an array of 2^32 elements.
	_, err = codec.Decode[any](codec.MsgpackSerializer{}, []byte("\xdd\xff\xff\xff\xff"))
	fmt.Println(errors.Is(err, codec.ErrMalformed), err)
	// Output:
	// {r1 [1 2 3]} <nil>
	// true codec: msgpack: malformed payload: byte 0: 4294967295 values declared, 0 bytes left
}

func ExampleRegistry() {
	r := codec.Default()
	s, err := r.ByID(codec.IDTensor)
	fmt.Println(s.Name(), err)
	_, err = r.ByName("pickle")
	fmt.Println(err)
	// Output:
	// tensor <nil>
	// codec: unknown serializer: name "pickle"; registered: raw, msgpack, tensor; register it on both ends
}
