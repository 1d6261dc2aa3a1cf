// Package vllm speaks the format in which vLLM's engine core exchanges values
// with its clients, that of its classes MsgpackEncoder and MsgpackDecoder.
//
// A value becomes several buffers, which travel as the parts of one message.
// The first holds the value in MessagePack, as Python's msgspec library writes
// it. The others are the data of large tensors and arrays, bare, in the order in
// which the value has them:
//
//	buffers, err := vllm.Encode(value, vllm.Options{})
//	err = vllm.Decoder{}.Decode(buffers, &value)
//
// # Values
//
// Plain values are encoded as by package codec/omni, and fields of structs go by
// the same msgpack tags. The option as_array on a field _msgpack makes a struct
// the array that vLLM's requests and outputs are. Beyond those:
//
//	Go                Python           in the first buffer
//	codec.Tensor      torch.Tensor     [dtype, shape, data], dtype such as "float32"
//	python.NDArray    numpy.ndarray    [dtype, shape, data], dtype such as "<f4"
//	python.Slice      slice            [start, stop, step]
//	Raw                                extension 3
//
// Data are extension 3 if they are small, and else the index of their buffer,
// from 1 on. What is small says [Options].
//
// # Types
//
// Nothing on the wire marks a tensor but its place: the list
// ["float32", [2], 1] may be one, or three values of a program. So the caller's
// types decide, as in Python. Where the target has a codec.Tensor or a
// python.NDArray, the list is taken for one; either takes the other's dtypes, if
// it has such elements. In an any it stays a list, []any{"float32",
// []any{int64(2)}, int64(1)}, and [Interpret] makes a tensor or an array of it for
// a caller who knows that it is one.
//
// A list that is not interpreted refers to buffers by their numbers. To send it
// on as it is, replace the first buffer by the one that Encode returns and send
// the others as they came, provided that the rest of the value has no tensors
// of its own; where it has, interpret all.
//
// Newer versions can leave a tensor's data out of the message and send a handle
// instead, a map in the place of the data, for memory that sender and receiver
// share. Nothing here opens one: it stays a map in an any, and in a struct of
// three fields with as_array; a codec.Tensor refuses it.
//
// Items of multi-modal inputs are maps, or lists of maps in older versions, with
// tensors inside: declare their types, or interpret what is under "data". Results
// of utility calls are lists of a type, or nil, and a value.
//
// # What is lost
//
//   - Tuples and sets arrive as lists, and so do slices, unless the target's
//     type is python.Slice.
//   - Integers beyond 64 bits have no encoding; Python refuses them as well.
//   - Every float has 64 bits on the wire.
//   - vLLM itself does not send arrays of dates and times, but reads them.
//   - Tensors with elements for which there is no [codec.DType] are refused as a
//     codec.Tensor. In an any they stay as they came.
//
// # Copies
//
// Encode copies data only into the first buffer, where they are small. The
// other buffers alias the tensors, which must not change until they have been
// sent. Decode copies text only: data are views of the buffers, small ones of
// the first, and []byte as well. A buffer of its own has the alignment that its
// receiver gave it, so that [codec.View] works on large tensors; small ones lie
// anywhere, and [codec.Tensor.Clone] aligns a copy.
//
// # Trust
//
// Buffers are not trusted. The bounds are those of package codec for msgpack, and
// no length is believed without bytes to back it. An index must be that of a
// buffer, and data must have the size that dtype and shape say. Errors of a
// payload are a [*codec.PayloadError], whose path says where in the value and
// whose offset is one in the first buffer.
//
// Extensions 1 and 2 hold pickled objects, which vLLM sends only if it was told
// to do so. Unpickling runs whatever the sender likes, and nothing here does it:
// they are refused.
//
// Functions and [Decoder] keep nothing between calls and are safe for concurrent
// use.
package vllm
