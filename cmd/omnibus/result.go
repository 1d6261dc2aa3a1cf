package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
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

// writeContent writes the bytes of a result. Bytes and text in msgpack are written without its header.
func writeContent(to io.Writer, d *bus.Delivery) error {
	content := d.Bytes()
	if d.PayloadCodec() == codec.IDMsgpack {
		var inner []byte // stays nil where the value is nil
		if d.Decode(&inner) == nil && inner != nil {
			content = inner
		}
	}
	_, err := to.Write(content)
	return err
}

// writeLine writes a result as a line of JSON. The end of a stream, which has
// no payload, gives no line.
func writeLine(to io.Writer, d *bus.Delivery) error {
	if d.Bare() {
		return nil
	}
	from, _, _ := strings.Cut(d.Edge, "->")
	r := result{From: from, Seq: d.Seq, Key: d.Key, Attrs: d.Attrs, Bytes: len(d.Bytes())}
	id := d.PayloadCodec()
	r.Codec = cmp.Or(codecNames[id], fmt.Sprint(uint32(id)))
	switch id {
	case codec.IDMsgpack:
		if err := d.Decode(&r.Value); err != nil {
			return r.noForm(err)
		}
	case codec.IDTensor:
		t, err := d.Tensor()
		if err != nil {
			return err
		}
		r.DType, r.Shape = t.DType.String(), t.Shape
	default: // the line has no value
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return r.noForm(err)
	}
	_, err := to.Write(line.Bytes())
	return err
}

// noForm is the error of a result that has no form in JSON. It names the flag that prints the bytes.
func (r *result) noForm(err error) error {
	return fmt.Errorf("result %d of stage %s has no form in JSON: %w: without --json and -o json its bytes are written as they are", r.Seq, r.From, err)
}

// codecNames are the names of the serializers.
var codecNames = map[codec.ID]string{
	codec.IDRaw: "raw", codec.IDMsgpack: "msgpack", codec.IDTensor: "tensor", codec.IDOmni: "omni",
	codec.IDKV: "kv", codec.IDProto: "proto", codec.IDBundle: "bundle",
}
