// Package python holds the values that Python programs send and for which Go
// and package codec have no type of their own: NumPy arrays, slices, and
// dictionaries, which keep their order and take keys of any kind.
//
// They are plain values, which package codec/omni encodes and decodes.
package python
