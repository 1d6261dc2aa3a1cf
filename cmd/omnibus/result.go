package main

import (
	"encoding/json"
	"io"
	"strings"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
)

// A result is one result of a request, as a line of JSON.
type result struct {
	From  string            `json:"from"` // the stage
	Seq   uint64            `json:"seq"`
	Key   string            `json:"key,omitempty"`
	Attrs map[string]string `json:"attrs,omitempty"`
	Codec string            `json:"codec"`
	Bytes int               `json:"bytes"`
	DType string            `json:"dtype,omitempty"` // of a tensor
	Shape []int             `json:"shape,omitempty"`
	Value any               `json:"value,omitempty"` // of msgpack
}

// writeLine writes a result as a line of JSON. The end of a stream, which has
// no payload, is none.
func writeLine(to io.Writer, d *bus.Delivery) error {
	if d.Bare() {
		return nil
	}
	from, _, _ := strings.Cut(d.Edge, "->")
	r := result{From: from, Seq: d.Seq, Key: d.Key, Attrs: d.Attrs, Bytes: len(d.Bytes())}
	switch id := d.PayloadCodec(); id {
	case codec.IDMsgpack:
		r.Codec = "msgpack"
		if err := d.Decode(&r.Value); err != nil {
			return err
		}
	case codec.IDTensor:
		r.Codec = "tensor"
		t, err := d.Tensor()
		if err != nil {
			return err
		}
		r.DType, r.Shape = t.DType.String(), t.Shape
	default:
		r.Codec = "raw"
	}
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	return enc.Encode(r)
}
