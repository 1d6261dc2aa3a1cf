package codec_test

import (
	"math"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// float8 is what a number of 8 bits is worth by the definition of its format.
func float8(bits, fracBits, bias int) float64 {
	exponent, frac := bits&0x7f>>fracBits, bits&(1<<fracBits-1)
	value := math.Ldexp(float64(frac), 1-bias-fracBits)
	if exponent > 0 {
		value = math.Ldexp(float64(1<<fracBits+frac), exponent-bias-fracBits)
	}
	return math.Copysign(value, float64(1-bits>>7*2))
}

// TestFloat8 compares all numbers of 8 bits with the definitions of their formats.
func TestFloat8(t *testing.T) {
	same := func(name string, bits int, got float32, want float64) {
		if float64(got) != want && !(math.IsNaN(float64(got)) && math.IsNaN(want)) || math.Signbit(float64(got)) != (bits > 0x7f) {
			t.Errorf("%s %#02x is %v, want %v", name, bits, got, want)
		}
	}
	for bits := range 256 {
		want := float8(bits, 3, 7)
		if bits&0x7f == 0x7f {
			want = math.NaN()
		}
		same("e4m3fn", bits, codec.Float8E4M3FN(bits).Float32(), want) //nolint:gosec // of 256
		want = float8(bits, 2, 15)
		switch abs := bits & 0x7f; {
		case abs == 0x7c:
			want = math.Inf(1 - bits>>7*2)
		case abs > 0x7c:
			want = math.NaN()
		}
		same("e5m2", bits, codec.Float8E5M2(bits).Float32(), want) //nolint:gosec // of 256
	}
	if most := codec.Float8E4M3FN(0x7e).Float32(); most != 448 {
		t.Errorf("the largest e4m3fn is %v", most)
	}
	if most := codec.Float8E5M2(0x7b).Float32(); most != 57344 {
		t.Errorf("the largest e5m2 is %v", most)
	}
}
