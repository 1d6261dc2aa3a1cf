package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/codec/python"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/bridge"
	"github.com/omnibus-runtime/omnibus/connector/shm"
)

// connectorTypes are the types of connector that the command has.
func connectorTypes() *connector.Registry {
	r := new(connector.Registry)
	for _, t := range append(bridge.Types(), shm.Type()) {
		if err := r.Register(t); err != nil {
			panic(err) // two have one name
		}
	}
	return r
}

// serializers are the ways in which values travel, by the words of --codec. A
// value of JSON travels as its text.
var serializers = map[string]codec.Serializer{
	"json":    codec.RawSerializer{},
	"msgpack": codec.MsgpackSerializer{},
	"omni":    omni.Serializer{KeepOrder: true},
	"raw":     codec.RawSerializer{},
}

// print writes a value for people and programs to read. A value that does not decode with --codec is
// written as bytes: get has removed it, so this is the only copy.
func (c *connecting) print(v *connector.Value, out io.Writer) error {
	text, err := c.text(v)
	if err != nil {
		text, err = v.Bytes(), fmt.Errorf("%w: the %d bytes were written as they are, as with --codec raw", err, v.Size())
	}
	if _, lost := out.Write(text); lost != nil {
		err = errors.Join(err, fmt.Errorf("%w: the value was taken, and is lost", lost))
	}
	return err
}

// text is the value in the form that --codec asks for.
func (c *connecting) text(v *connector.Value) ([]byte, error) {
	switch c.codec.word {
	case "raw":
		return v.Bytes(), nil
	case "json":
		if !json.Valid(v.Bytes()) {
			return nil, fmt.Errorf("%w: no JSON", connector.ErrDecode)
		}
		return slices.Concat(v.Bytes(), []byte("\n")), nil
	}
	var value any
	if err := v.Decode(&value); err != nil {
		return nil, err
	}
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	form, err := jsonable(value)
	if err == nil {
		err = enc.Encode(form)
	}
	if err != nil {
		return nil, fmt.Errorf("the value has no form in JSON: %w", err)
	}
	return line.Bytes(), nil
}

// shaped is a tensor, an array or an image in JSON.
type shaped struct {
	Kind  string `json:"kind"`
	DType string `json:"dtype,omitempty"`
	Mode  string `json:"mode,omitempty"`
	Shape []int  `json:"shape"`
	Data  []byte `json:"data"` // as base64
}

// jsonable replaces values for which JSON has no type.
func jsonable(v any) (form any, err error) {
	switch v := v.(type) {
	case codec.Tensor:
		return shaped{Kind: "tensor", DType: v.DType.String(), Shape: v.Shape, Data: v.Data}, nil
	case python.NDArray:
		return shaped{Kind: "array", DType: v.DType, Shape: v.Shape, Data: v.Data}, nil
	case omni.Image:
		return shaped{Kind: "image", Mode: v.Mode, Shape: v.Shape, Data: v.Data}, nil
	case []any:
		for i := range v {
			if v[i], err = jsonable(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = jsonable(v[k]); err != nil {
				return nil, err
			}
		}
	case python.Dict:
		return jsonObject(v)
	}
	return v, nil
}

// jsonObject is a dict with text for its keys. If different keys in Python have the same text,
// there is no such object.
func jsonObject(v python.Dict) (any, error) {
	m := make(map[string]any, len(v))
	keys := make(map[string]any, len(v))
	for _, item := range v {
		text := fmt.Sprint(item.Key)
		if first, there := keys[text]; there && !reflect.DeepEqual(first, item.Key) {
			return nil, fmt.Errorf("a dict has the keys %#v and %#v, which are one in JSON", first, item.Key)
		}
		form, err := jsonable(item.Value)
		if err != nil {
			return nil, err
		}
		m[text], keys[text] = form, item.Key
	}
	return m, nil
}

// joining opens the exchange of a host, which it joins when a connector needs it.
type joining struct {
	ctx    context.Context //nolint:containedctx // of the command
	at     finder
	name   string
	leaves func()
}

// OpenExchange implements [connector.Exchange].
func (j *joining) OpenExchange(lasting bool) (connector.Transport, error) {
	node, leave, err := j.at.join(j.ctx, j.name, node.JoinOptions{})
	if err != nil {
		return nil, err
	}
	j.leaves = leave
	return node.OpenExchange(lasting)
}

func (j *joining) leave() {
	if j.leaves != nil {
		j.leaves()
	}
}
