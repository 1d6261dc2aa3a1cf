// Package msgspec encodes Go values as Python's msgspec library encodes the
// Python values they stand for, byte for byte, and decodes what it writes.
//
// A [Format] adds what msgspec leaves to its user: the bytes of tensors,
// arrays and other values that msgpack has no type for. Encoding runs twice
// over a value where the size is wanted first, once counting. Decoding goes
// over the payload once and copies text only; binary data are views.
//
// Whatever comes out of a payload is bounded by package pack. Errors say
// where in the value they are: the path is put together on the way out, so
// that a value without an error pays nothing for it.
package msgspec
