package codec_test

import (
	"math"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
)

// float describes a 16-bit format, as a model to test against.
type float struct {
	name               string
	expBits, fracBits  int
	toFloat32          func(bits uint16) float32
	fromFloat32        func(f float32) (bits uint16)
	exponentBias, emax int
}

var floats = []float{
	{
		name: "float16", expBits: 5, fracBits: 10, exponentBias: 15, emax: 31,
		toFloat32:   func(b uint16) float32 { return codec.Float16(b).Float32() },
		fromFloat32: func(f float32) uint16 { return uint16(codec.ToFloat16(f)) },
	},
	{
		name: "bfloat16", expBits: 8, fracBits: 7, exponentBias: 127, emax: 255,
		toFloat32:   func(b uint16) float32 { return codec.BFloat16(b).Float32() },
		fromFloat32: func(f float32) uint16 { return uint16(codec.ToBFloat16(f)) },
	},
}

// value returns the number with these bits by the definition of the format.
func (m float) value(bits uint16) float64 {
	frac := int(bits) & (1<<m.fracBits - 1)
	exp := int(bits) >> m.fracBits & (1<<m.expBits - 1)
	var v float64
	switch {
	case exp == m.emax && frac != 0:
		return math.NaN()
	case exp == m.emax:
		v = math.Inf(1)
	case exp == 0:
		v = math.Ldexp(float64(frac), 1-m.exponentBias-m.fracBits)
	default:
		v = math.Ldexp(float64(1<<m.fracBits+frac), exp-m.exponentBias-m.fracBits)
	}
	if bits>>15 == 1 {
		v = -v
	}
	return v
}

func TestFloat16AllValues(t *testing.T) {
	for _, m := range floats {
		t.Run(m.name, func(t *testing.T) {
			quiet := uint16(1) << (m.fracBits - 1)
			for i := range 1 << 16 {
				bits := uint16(i)
				want, got := m.value(bits), m.toFloat32(bits)
				back := m.fromFloat32(got)
				if math.IsNaN(want) {
					if got == got {
						t.Fatalf("%#04x is %v, want NaN", bits, got)
					}
					if back != bits|quiet {
						t.Fatalf("NaN %#04x came back as %#04x, want it quiet and the same otherwise", bits, back)
					}
					continue
				}
				if float64(got) != want || math.Signbit(float64(got)) != math.Signbit(want) {
					t.Fatalf("%#04x is %v, want %v", bits, got, want)
				}
				if back != bits {
					t.Fatalf("%#04x came back as %#04x", bits, back)
				}
			}
		})
	}
}

// TestFloat16Rounding visits every point where rounding changes its mind: the
// halfway points between neighbours, and the float32 next to them on either
// side.
func TestFloat16Rounding(t *testing.T) {
	for _, m := range floats {
		t.Run(m.name, func(t *testing.T) {
			inf := uint16(m.emax) << m.fracBits
			for lower := range inf {
				upper := lower + 1
				// Beyond the largest number the next step would be 2^emax:
				// halfway there, ties to even make infinity.
				above := m.value(upper)
				if upper == inf {
					above = 2*m.value(lower) - m.value(lower-1)
				}
				half := float32((m.value(lower) + above) / 2)
				even := lower + lower&1
				checkRounds(t, m, half, even)
				checkRounds(t, m, math.Nextafter32(half, 0), lower)
				checkRounds(t, m, math.Nextafter32(half, float32(math.Inf(1))), upper)
			}
		})
	}
}

func checkRounds(t *testing.T, m float, f float32, want uint16) {
	t.Helper()
	if got := m.fromFloat32(f); got != want {
		t.Fatalf("%v (%#08x) rounds to %#04x, want %#04x", f, math.Float32bits(f), got, want)
	}
	if got := m.fromFloat32(-f); got != want|1<<15 {
		t.Fatalf("%v rounds to %#04x, want %#04x", -f, got, want|1<<15)
	}
}

func TestFloat16Known(t *testing.T) {
	inf, tiny := float32(math.Inf(1)), float32(math.SmallestNonzeroFloat32)
	tests := []struct {
		name string
		in   float32
		f16  codec.Float16
		bf16 codec.BFloat16
	}{
		{"zero", 0, 0x0000, 0x0000},
		{"negative zero", float32(math.Copysign(0, -1)), 0x8000, 0x8000},
		{"one", 1, 0x3c00, 0x3f80},
		{"minus two", -2, 0xc000, 0xc000},
		{"a third", 1.0 / 3, 0x3555, 0x3eab},
		{"largest float16", 65504, 0x7bff, 0x4780},
		{"just infinite", 65520, 0x7c00, 0x4780},
		{"smallest normal float16", 0x1p-14, 0x0400, 0x3880},
		{"smallest float16", 0x1p-24, 0x0001, 0x3380},
		{"half of it is a tie", 0x1p-25, 0x0000, 0x3300},
		{"smallest float32", tiny, 0x0000, 0x0000},
		{"largest float32", math.MaxFloat32, 0x7c00, 0x7f80},
		{"infinity", inf, 0x7c00, 0x7f80},
		{"negative infinity", -inf, 0xfc00, 0xff80},
		{"quiet NaN", math.Float32frombits(0x7fc0_0000), 0x7e00, 0x7fc0},
		{"NaN with a payload only in the low bits", math.Float32frombits(0xff80_0001), 0xfe00, 0xffc0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := codec.ToFloat16(tt.in); got != tt.f16 {
				t.Errorf("ToFloat16 = %#04x, want %#04x", got, tt.f16)
			}
			if got := codec.ToBFloat16(tt.in); got != tt.bf16 {
				t.Errorf("ToBFloat16 = %#04x, want %#04x", got, tt.bf16)
			}
		})
	}
}
