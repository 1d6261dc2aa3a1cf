package codec

import "math"

// Float8E4M3FN is a number of 8 bits by its bits: 1 sign, 4 exponent and 3 fraction
// bits. It is finite up to 448, and has no infinities: all ones is NaN.
type Float8E4M3FN uint8

// Float8E5M2 is a number of 8 bits by its bits: the upper half of a [Float16], with
// 1 sign, 5 exponent and 2 fraction bits.
type Float8E5M2 uint8

const (
	f8Sign       = 0x80
	e4m3FracBits = 3
	e4m3Step     = 0x1p-9 // the smallest number, and the step between subnormals
	e4m3Bias     = 7
)

// Float32 returns the same number as a float32, exactly.
func (f Float8E4M3FN) Float32() float32 {
	sign := uint32(f&f8Sign) << 24
	abs := uint32(f &^ f8Sign)
	switch {
	case abs == f8Sign-1:
		return math.Float32frombits(sign | f32Inf | 1<<(f32FracBits-1))
	case abs < 1<<e4m3FracBits:
		return math.Float32frombits(sign | math.Float32bits(float32(abs)*e4m3Step))
	}
	return math.Float32frombits(sign | (abs<<(f32FracBits-e4m3FracBits) + (127-e4m3Bias)<<f32FracBits))
}

// Float32 returns the same number as a float32, exactly.
func (f Float8E5M2) Float32() float32 { return Float16(uint16(f) << 8).Float32() }
