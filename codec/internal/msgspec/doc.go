// Package msgspec encodes Go values as Python's msgspec library encodes the
// corresponding Python values, byte for byte, and decodes the library's payloads.
//
// A [Format] adds the values that msgspec leaves to its user: the bytes of tensors,
// arrays and other values without a msgpack type. If the size is needed first, encoding
// passes twice over a value, once only counting. Decoding passes
// over the payload once and copies text only; binary data are views.
//
// Package pack bounds the values decoded from a payload. Errors have the path in the
// value: each level adds its step when it returns an error, so
// that a value without an error has no cost for it.
package msgspec
