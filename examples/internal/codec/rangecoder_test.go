package codec

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// The integers themselves are decoded exactly, over their whole range.
func TestLevelsRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		const hop = 64
		shape := Shape{Rate: 1, Channels: 1, Frames: 3, Hop: hop}
		limit := int32(1)<<rapid.IntRange(0, maxClass).Draw(rt, "bits") - 1
		levels := rapid.SliceOfN(rapid.Int32Range(-limit, limit), 3*hop, 3*hop).Draw(rt, "levels")

		s := borrow(shape)
		e := newRangeEncoder(nil, math.MaxInt)
		for f := range 3 {
			copy(s.levels, levels[f*hop:])
			s.encodeRow(e, 0)
		}
		out, _ := e.finish()
		s = borrow(shape)
		d := newRangeDecoder(out)
		for f := range 3 {
			s.decodeRow(d, 0)
			if diff := cmp.Diff(levels[f*hop:][:hop], s.levels); diff != "" {
				rt.Fatalf("frame %d changed (-was +is):\n%s", f, diff)
			}
		}
		if !d.ended() {
			rt.Fatalf("%d bytes are left, code %d", len(d.in), d.code)
		}
	})
}

// Any sequence of decisions is decoded, also one that makes carries run through
// many bytes, and the end is where it should be.
func TestRangeCoder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		decisions := rapid.SliceOf(rapid.Bool()).Draw(rt, "decisions")
		evens := rapid.SliceOf(rapid.Uint32Range(0, 1<<17-1)).Draw(rt, "even bits")
		repeat := rapid.IntRange(1, 200).Draw(rt, "repeat")
		e, b := newRangeEncoder(nil, math.MaxInt), even
		for range repeat {
			for _, one := range decisions {
				e.encode(&b, one)
			}
		}
		for _, v := range evens {
			e.encodeEven(v, 17)
		}
		out, ok := e.finish()
		if !ok {
			rt.Fatal("a limit was met where there is none")
		}
		d, b := newRangeDecoder(out), even
		for range repeat {
			for i, want := range decisions {
				if got := d.decode(&b); got != want {
					rt.Fatalf("decision %d is %v, want %v", i, got, want)
				}
			}
		}
		for i, want := range evens {
			if got := d.decodeEven(17); got != want {
				rt.Fatalf("even bits %d are %x, want %x", i, got, want)
			}
		}
		if !d.ended() {
			rt.Fatalf("%d bytes are left, code %d", len(d.in), d.code)
		}
	})
}

// The extremes of the range: output that begins with 0xFF or consists of it, and
// a carry that runs through all of it.
func TestRangeCoderAtTheTop(t *testing.T) {
	for name, evens := range map[string][]uint32{
		"nothing":        nil,
		"all ones":       {1<<17 - 1, 1<<17 - 1, 1<<17 - 1, 1<<17 - 1},
		"ones, then 0":   {1<<17 - 1, 1<<17 - 1, 0, 0},
		"carry at last":  {1<<17 - 1, 1<<17 - 1, 1<<17 - 1, 1},
		"ones in middle": {0, 1<<17 - 1, 1<<17 - 1, 0},
	} {
		for likely := range 8 { // decisions behind, which shift the range a little
			e, b := newRangeEncoder(nil, math.MaxInt), even
			for _, v := range evens {
				e.encodeEven(v, 17)
			}
			for i := range likely {
				e.encode(&b, i != 5)
			}
			out, _ := e.finish()
			d, b := newRangeDecoder(out), even
			for i, want := range evens {
				if got := d.decodeEven(17); got != want {
					t.Errorf("%s: even bits %d are %x, want %x", name, i, got, want)
				}
			}
			for i := range likely {
				if got, want := d.decode(&b), i != 5; got != want {
					t.Errorf("%s: decision %d is %v, want %v", name, i, got, want)
				}
			}
			if !d.ended() {
				t.Errorf("%s: %d bytes are left, code %d", name, len(d.in), d.code)
			}
		}
	}
}

// A probability never becomes a certainty, which could not be coded.
func TestBitStaysUncertain(t *testing.T) {
	for _, one := range []bool{false, true} {
		b := even
		for range 1000 {
			b.update(one)
		}
		if p := b.zero(); p == 0 || p >= 1<<probBits {
			t.Errorf("after 1000 times %v the probability of a 0 is %d of %d", one, p, 1<<probBits)
		}
	}
}
