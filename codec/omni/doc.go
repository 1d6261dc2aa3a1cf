// Package omni speaks the format in which the stages of vLLM-Omni exchange
// values through their connectors, that of its class OmniSerializer.
//
// A Go stage can stand between Python stages: both read each other's payloads. The bytes
// are those that Python's msgspec library writes for the same value.
//
//	r := codec.Default()
//	err := r.Register(omni.Serializer{})
//
// # Values
//
//	Go                                Python
//	nil, bool, string, []byte         None, bool, str, bytes
//	integers, floats                  int, float
//	slices and arrays                 list
//	maps, structs, python.Dict        dict
//	codec.Tensor                      torch.Tensor
//	python.NDArray                    numpy.ndarray
//	Image                             PIL.Image.Image
//	python.Slice                      slice, which arrives as a list of three
//	time.Time                         datetime with a time zone
//
// Fields of structs use their msgpack tags, as with
// [codec.MsgpackSerializer]: a name, "-", omitempty, and as_array on a field
// _msgpack. Embedded structs are part of the one that embeds them; embedded
// pointers are fields. Keys of a map are text, numbers, bools or nil, all of one
// kind or not; a [python.Dict] takes all keys of the format. A nil pointer,
// slice or map is None. Text must be UTF-8.
//
// Decoding into an any gives int64 (uint64 beyond its range), float64, string,
// []byte, []any, map[string]any (map[any]any if a key is no text, and python.Dict if
// one is a list, binary or a time), or one of the types above. Numbers that do not
// fit their target are refused. A codec.Tensor as a target takes an array too, and a
// python.NDArray a tensor, if both have such elements.
//
// A dict that has "__tensor__" or "__ndarray__" and the entries "dtype", "shape"
// and "data", or "__pil_image__", "mode", "shape" and "data", stands for a tensor,
// an array or an image, also where a Go map is encoded. One that lacks an entry is
// a dict; vLLM-Omni itself refuses that.
//
// RequestOutput, CompletionOutput and OmniRequestOutput are dicts on the wire,
// and stay maps here. Python recognises them by their keys: it makes an object
// of every dict that has, for example, both "finished" and "images", so a map
// that must stay a dict must not have such a set of keys.
//
// # Order
//
// A Go map has no order, so its keys are sorted: text byte by byte, numbers by
// size. With [Serializer.KeepOrder], and inside a target of type python.Dict, a
// dict is decoded into a python.Dict in its order, and encoding that again gives
// the same bytes.
//
// # Losses
//
//   - Tuples and sets arrive as lists, and so do slices, unless the target's
//     type is python.Slice. The format has no mark for them.
//   - Integers beyond 64 bits have no encoding; Python refuses them as well.
//     Times outside the years 1 to 9999, which Python's datetimes do not cover, are refused
//     both ways, and so are keys of a python.Dict that are dicts, tensors, arrays
//     or images, or contain one.
//   - Every float has 64 bits on the wire.
//   - A tensor without dimensions keeps its empty shape. A tensor on another
//     device arrives in the memory of the host, and gradients are lost.
//   - The class of a dataclass or struct: it is a dict of its fields.
//   - Tensors with elements for which there is no [codec.DType], such as complex32
//     or float8_e4m3fnuz, are refused, with the rest of their payload.
//
// # Copies
//
// A tensor's data, like all binary data, is copied once by
// [Serializer.EncodeInto], into the memory that the caller has reserved, and not
// at all by [Serializer.Decode]: decoded tensors, arrays, images and []byte are
// views of the payload, valid for as long as the payload is and never to be
// written to. The format aligns nothing: data begins directly behind the keys
// before it, and [codec.View] of it is a [codec.ErrAlignment] unless that address
// happens to be aligned. [codec.Tensor.Clone] makes an aligned copy.
//
// # Trust
//
// Payloads are not trusted, as everywhere in package codec, and the bounds are
// the same: [codec.MaxMsgpackDepth], [codec.MaxMsgpackValues],
// [codec.MaxDims], and no length without bytes to back it. A tensor's data must
// have the size that follows from dtype and shape. Errors of a payload are a
// [*codec.PayloadError] with the path in the value. Related
// formats have two extensions for pickled objects. Unpickling runs code of the sender, so
// this package refuses both.
//
// Values to encode are bounded likewise, and one that contains itself is an
// error.
package omni
