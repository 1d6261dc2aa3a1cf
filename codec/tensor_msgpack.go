package codec

import (
	"errors"
	"fmt"
	"math"

	"github.com/vmihailenco/msgpack/v5"
)

// A tensor inside a msgpack value is the map
//
//	{"__tensor__": true, "dtype": "float32", "shape": [2, 3], "data": bin}
//
// which Python serializers of the same pipelines write as well. Decoding into
// a Tensor uses dtype, shape and data, in any order, and ignores other
// keys; decoding into an any gives the map.
const (
	tensorMarkKey  = "__tensor__"
	tensorDTypeKey = "dtype"
	tensorShapeKey = "shape"
	tensorDataKey  = "data"
)

var (
	_ msgpack.CustomEncoder = Tensor{}
	_ msgpack.CustomDecoder = (*Tensor)(nil)
)

// EncodeMsgpack writes t as a map of dtype, shape and data. The library
// calls it.
func (t Tensor) EncodeMsgpack(enc *msgpack.Encoder) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if uint64(len(t.Data)) > math.MaxUint32 {
		return t.shapeError("data beyond 4 GiB does not fit into msgpack; send the tensor alone")
	}
	return errors.Join(
		enc.EncodeMapLen(4),
		enc.EncodeString(tensorMarkKey), enc.EncodeBool(true),
		enc.EncodeString(tensorDTypeKey), enc.EncodeString(t.DType.String()),
		enc.EncodeString(tensorShapeKey), encodeShape(enc, t.Shape),
		enc.EncodeString(tensorDataKey), encodeData(enc, t.Data),
	)
}

func encodeShape(enc *msgpack.Encoder, shape []int) error {
	err := enc.EncodeArrayLen(len(shape))
	for _, dim := range shape {
		err = errors.Join(err, enc.EncodeInt(int64(dim)))
	}
	return err
}

// encodeData writes empty data as empty, where EncodeBytes would write nil.
func encodeData(enc *msgpack.Encoder, data []byte) error {
	if err := enc.EncodeBytesLen(len(data)); err != nil {
		return err
	}
	_, err := enc.Writer().Write(data)
	return err
}

// DecodeMsgpack reads the map that EncodeMsgpack writes. Data is copied. The library
// calls it. Declared lengths are not checked, as everywhere in the
// library: [MsgpackSerializer] has checked them before.
func (t *Tensor) DecodeMsgpack(dec *msgpack.Decoder) error {
	fields, err := dec.DecodeMapLen()
	if err != nil {
		return err
	}
	var got Tensor
	for range fields {
		key, err := dec.DecodeString()
		if err != nil {
			return err
		}
		switch key {
		case tensorDTypeKey:
			got.DType, err = decodeDType(dec)
		case tensorShapeKey:
			got.Shape, err = decodeShape(dec)
		case tensorDataKey:
			got.Data, err = decodeData(dec)
		default:
			err = dec.Skip()
		}
		if err != nil {
			return fmt.Errorf("tensor field %q: %w", key, err)
		}
	}
	if err := got.Validate(); err != nil {
		return err
	}
	*t = got
	return nil
}

func decodeDType(dec *msgpack.Decoder) (DType, error) {
	name, err := dec.DecodeString()
	if err != nil {
		return 0, err
	}
	return ParseDType(name)
}

func decodeShape(dec *msgpack.Decoder) ([]int, error) {
	n, err := dec.DecodeArrayLen()
	if err != nil {
		return nil, err
	}
	shape := make([]int, max(n, 0)) // n is -1 for nil
	for i := range shape {
		dim, err := dec.DecodeInt64()
		if err != nil {
			return nil, err
		}
		if shape[i] = int(dim); int64(shape[i]) != dim {
			return nil, fmt.Errorf("dimension %d is %d", i, dim)
		}
	}
	return shape, nil
}

func decodeData(dec *msgpack.Decoder) ([]byte, error) {
	n, err := dec.DecodeBytesLen()
	if err != nil {
		return nil, err
	}
	data := makeAligned(max(n, 0)) // n is -1 for nil
	return data, dec.ReadFull(data)
}
