package codec

// Float16 is an IEEE 754 binary16 number by its bits: 1 sign, 5 exponent and
// 10 fraction bits.
type Float16 uint16

// BFloat16 is a bfloat16 number by its bits: the upper half of a float32,
// with 1 sign, 8 exponent and 7 fraction bits.
type BFloat16 uint16

// Float8E4M3FN is a number of 8 bits by its bits: 1 sign, 4 exponent and 3 fraction
// bits. It is finite up to 448, and has no infinities: all ones is NaN.
type Float8E4M3FN uint8

// Float8E5M2 is a number of 8 bits by its bits: the upper half of a [Float16], with
// 1 sign, 5 exponent and 2 fraction bits.
type Float8E5M2 uint8
