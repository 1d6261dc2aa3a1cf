package codec

import "math"

// Float16 is an IEEE 754 binary16 number by its bits: 1 sign, 5 exponent and
// 10 fraction bits.
type Float16 uint16

// BFloat16 is a bfloat16 number by its bits: the upper half of a float32,
// with 1 sign, 8 exponent and 7 fraction bits.
type BFloat16 uint16

const (
	f32Sign     = 0x8000_0000
	f32Inf      = 0x7f80_0000
	f32FracBits = 23

	f16Inf      = 0x7c00
	f16Quiet    = 0x0200 // the fraction bit that makes a NaN quiet
	f16Frac     = 0x03ff
	f16FracBits = 10
	f16Min      = 0x1p-14 // the smallest normal number
	f16Step     = 0x1p-24 // the smallest number, and the step between subnormals

	bf16Quiet = 0x0040 // the fraction bit that makes a NaN quiet
	bf16Half  = 0x8000 // half a unit in the last place, in float32 bits

	// fracDrop is how many fraction bits a float16 has less than a float32.
	fracDrop = f32FracBits - f16FracBits
	// biasShift turns the exponent of a float16 into that of a float32.
	biasShift = (127 - 15) << f32FracBits
)

// ToFloat16 rounds f to the nearest Float16, ties to even. What is 65520 or
// beyond becomes infinite. A NaN stays one, made quiet, with its sign and the
// upper bits of its payload.
func ToFloat16(f float32) Float16 {
	bits := math.Float32bits(f)
	sign := Float16((bits & f32Sign) >> 16)
	abs := bits &^ f32Sign
	switch {
	case abs > f32Inf:
		return sign | f16Inf | f16Quiet | Float16(abs>>fracDrop)&f16Frac
	case abs >= 0x477f_f000: // 65520, halfway from the largest number to 2^16
		return sign | f16Inf
	case math.Float32frombits(abs) < f16Min:
		// The unit in the last place of 0.5 is f16Step: the addition rounds,
		// and leaves the number of steps in the fraction.
		const half = float32(0.5)
		return sign | Float16(math.Float32bits(math.Float32frombits(abs)+half)-math.Float32bits(half))
	}
	// Just below half a unit, plus one if the last bit kept is odd: a carry
	// out of the fraction goes into the exponent, as it must.
	abs += 1<<(fracDrop-1) - 1 + abs>>fracDrop&1
	return sign | Float16((abs-biasShift)>>fracDrop)
}

// Float32 returns the same number as a float32, exactly.
func (h Float16) Float32() float32 {
	sign := uint32(h&0x8000) << 16
	abs := uint32(h & 0x7fff)
	switch {
	case abs >= f16Inf:
		return math.Float32frombits(sign | f32Inf | (abs&f16Frac)<<fracDrop)
	case abs < 1<<f16FracBits: // zero or subnormal
		return math.Float32frombits(sign | math.Float32bits(float32(abs)*f16Step))
	}
	return math.Float32frombits(sign | (abs<<fracDrop + biasShift))
}

// ToBFloat16 rounds f to the nearest BFloat16, ties to even. A NaN stays one,
// made quiet, with its sign and the upper bits of its payload.
func ToBFloat16(f float32) BFloat16 {
	bits := math.Float32bits(f)
	if bits&^f32Sign > f32Inf {
		return BFloat16(bits>>16) | bf16Quiet
	}
	return BFloat16((bits + bf16Half - 1 + bits>>16&1) >> 16)
}

// Float32 returns the same number as a float32, exactly.
func (b BFloat16) Float32() float32 {
	return math.Float32frombits(uint32(b) << 16)
}
