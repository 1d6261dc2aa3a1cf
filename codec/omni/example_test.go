package omni_test

import (
	"bytes"
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/omni"
)

// A stage in Go decodes a payload of a stage in Python, without copying the
// tensor, and sends a value on in the same format.
func ExampleSerializer() {
	serializers := codec.Default()
	if err := serializers.Register(omni.Serializer{}); err != nil {
		panic(err)
	}
	s, err := serializers.ByID(codec.IDOmni)
	if err != nil {
		panic(err)
	}
	// {"finished": True, "embed": torch.ones(2)}
	received := []byte("\x82\xa8finished\xc3\xa5embed" +
		"\x84\xaa__tensor__\xc3\xa5dtype\xa7float32\xa5shape\x91\x02\xa4data\xc4\x08\x00\x00\x80\x3f\x00\x00\x80\x3f")

	type step struct {
		Finished bool         `msgpack:"finished"`
		Embed    codec.Tensor `msgpack:"embed"`
	}
	got, err := codec.Decode[step](s, received)
	fmt.Println(got.Finished, got.Embed, err)

	sent, err := s.Append(nil, got)
	fmt.Println("same bytes:", bytes.Equal(sent, received), err)
	// Output:
	// true float32[2] <nil>
	// same bytes: true <nil>
}
