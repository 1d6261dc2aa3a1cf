// Package pack reads and writes MessagePack value by value.
//
// [Reader] is for bytes that are not trusted. It passes over them once, reads
// each byte of structure once, and checks every declared length against the
// bytes that are there before the caller allocates memory for it, so that the bytes may
// even change while they are read. Text, binary data and extensions are
// views. [Writer] writes each value in the smallest encoding that holds it,
// as msgpack libraries agree, and can count the bytes instead of writing them.
//
// The packages below codec share it, and give meaning to the values.
package pack
