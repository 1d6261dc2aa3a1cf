package codec

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func genShape() *rapid.Generator[Shape] {
	return rapid.Custom(func(t *rapid.T) Shape {
		s := Shape{
			Rate:     rapid.IntRange(1, MaxRate).Draw(t, "rate"),
			Channels: rapid.IntRange(1, MaxChannels).Draw(t, "channels"),
			Frames:   rapid.IntRange(0, 5).Draw(t, "frames"),
			Hop:      rapid.SampledFrom([]int{16, 32, 64}).Draw(t, "hop"),
		}
		s.Samples = rapid.IntRange(0, s.Frames*s.Hop).Draw(t, "samples")
		return s
	})
}

// drawChunk returns a chunk with coefficients of any finite value, many of them
// of the magnitudes that 16-bit PCM has.
func drawChunk(t *rapid.T) chunk {
	shape := genShape().Draw(t, "shape")
	usual := rapid.Custom(func(t *rapid.T) float32 { return rapid.Float32Range(-1e5, 1e5).Draw(t, "usual") })
	value := rapid.OneOf(rapid.Just[float32](0), usual, rapid.Float32())
	n := shape.Coefficients()
	return chunk{shape, rapid.SliceOfN(value, n, n).Draw(t, "coefficients")}
}

// A decoded chunk has its shape. Its coefficients are off by no more than
// the rounding, or not at all when it is stored raw.
func TestChunkRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := drawChunk(rt)
		step := rapid.SampledFrom([]float32{0, 1e-30, 0.25, 17, 1000, MaxStep}).Draw(rt, "step")
		prefix := []byte("before")
		coded, err := EncodeChunk(slices.Clone(prefix), c.coeffs, c.shape, step)
		if err != nil {
			rt.Fatal(err)
		}
		if !bytes.HasPrefix(coded, prefix) {
			rt.Fatal("the contents of dst are lost")
		}
		coded = coded[len(prefix):]
		if limit := MaxEncodedSize(c.shape); len(coded) > limit {
			rt.Fatalf("%d bytes, the limit is %d", len(coded), limit)
		}
		h, _ := parseHeader(coded)
		got := decode(t, coded)
		if diff := cmp.Diff(c.shape, got.shape); diff != "" {
			rt.Fatalf("shape changed (-was +is):\n%s", diff)
		}
		// Rotating mixes the errors of two channels: at worst sqrt(2) of one.
		bound := (1 - rounding) * math.Sqrt2 * float64(h.step)
		for k, want := range c.coeffs {
			slack := 1e-6 * (math.Abs(float64(want)) + float64(h.step)*maxLevel*1e-1)
			if h.kind == kindRaw {
				slack = 0
			}
			if d := math.Abs(float64(got.coeffs[k]) - float64(want)); d > bound+slack {
				rt.Fatalf("coefficient %d is %v, was %v, step %v, kind %d", k, got.coeffs[k], want, h.step, h.kind)
			}
		}
	})
}

func exampleChunk(channels int) chunk {
	shape := Shape{Rate: 22050, Channels: channels, Frames: 3, Hop: 32, Samples: 70}
	c := chunk{shape, make([]float32, shape.Coefficients())}
	for k := range c.coeffs {
		c.coeffs[k] = float32(1000 * math.Sin(float64(k*k)) / float64(1+k%32))
	}
	return c
}

// Every change of a single bit, and every wrong length, is detected.
func TestEveryDamageIsNoticed(t *testing.T) {
	for name, step := range map[string]float32{"raw": 0, "coded": 50} {
		coded := encode(t, exampleChunk(2), step)
		dst := make([]float32, 2*MaxFrames*64)
		check := func(damaged []byte, what string, at int) {
			_, err := DecodeChunk(dst, damaged)
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrVersion) {
				t.Fatalf("%s chunk, %s %d: %v, want ErrCorrupt", name, what, at, err)
			}
		}
		for i := range 8 * len(coded) {
			damaged := slices.Clone(coded)
			damaged[i/8] ^= 1 << (i % 8)
			check(damaged, "changed bit", i)
		}
		for n := range coded {
			check(coded[:n], "cut to length", n)
		}
		check(append(slices.Clone(coded), 0), "lengthened to", len(coded)+1)
	}
}

// reseal makes the checksum and the size of a damaged chunk right again, so that
// the checks behind them are reached.
func reseal(coded []byte) []byte {
	if len(coded) >= headerBytes {
		binary.LittleEndian.PutUint32(coded[payloadAt:], uint32(len(coded)-headerBytes))
		binary.LittleEndian.PutUint32(coded[checksumAt:], checksum(coded))
	}
	return coded
}

func TestCorruptChunks(t *testing.T) {
	le := binary.LittleEndian
	for _, c := range []struct {
		name   string
		step   float32
		damage func(coded []byte) []byte
		err    error
		text   string
	}{
		{"magic", 50, func(b []byte) []byte { b[0] = 'X'; return b }, ErrCorrupt, `begins with "XMDC"`},
		{"version", 50, func(b []byte) []byte { b[4] = 9; return b }, ErrVersion, "9, this is version 1"},
		{"kind", 50, func(b []byte) []byte { b[kindAt] = 3; return b }, ErrCorrupt, "kind 3 is not defined"},
		{"coded kind for raw", 0, func(b []byte) []byte { b[kindAt] = 1; return b }, ErrCorrupt, "kind 1 with step 0"},
		{"raw kind for coded", 50, func(b []byte) []byte { b[kindAt] = 0; return b }, ErrCorrupt, "kind 0 with step 50"},
		{"rotated mono", 50, func(b []byte) []byte { b[kindAt] = 2; return b }, ErrCorrupt, "sum and difference"},
		{"no channels", 50, func(b []byte) []byte { b[6] = 0; return b }, ErrCorrupt, "channels is 0"},
		{"three channels", 50, func(b []byte) []byte { b[6] = 3; return b }, ErrCorrupt, "channels is 3"},
		{"too many frames", 50, func(b []byte) []byte { b[7] = MaxFrames + 1; return b }, ErrCorrupt, "frames is 65"},
		{"hop", 50, func(b []byte) []byte { le.PutUint16(b[hopAt:], 33); return b }, ErrCorrupt, "got 33"},
		{"reserved", 50, func(b []byte) []byte { b[zeroAt] = 1; return b }, ErrCorrupt, "must be zero"},
		{"samples", 50, func(b []byte) []byte { le.PutUint32(b[samplesAt:], 97); return b }, ErrCorrupt, "samples is 97"},
		{"huge samples", 50, func(b []byte) []byte { le.PutUint32(b[samplesAt:], 1<<31+1); return b }, ErrCorrupt, "samples is 2147483647"},
		{"rate", 50, func(b []byte) []byte { le.PutUint32(b[rateAt:], 0); return b }, ErrCorrupt, "rate is 0"},
		{"step not a number", 50, func(b []byte) []byte { le.PutUint32(b[stepAt:], 0x7fc00000); return b }, ErrCorrupt, "NaN"},
		{"negative step", 50, func(b []byte) []byte { b[stepAt+3] |= 0x80; return b }, ErrCorrupt, "-50"},
		{"payload longer", 50, func(b []byte) []byte { return append(b, 0) }, ErrCorrupt, "do not end as"},
		{"payload shorter", 50, func(b []byte) []byte { return b[:len(b)/2] }, ErrCorrupt, "end in frame"},
		{"no payload", 50, func(b []byte) []byte { return b[:headerBytes] }, ErrCorrupt, "end in frame 0"},
		{"last byte", 50, func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, ErrCorrupt, "do not end as"},
		{"lead", 50, func(b []byte) []byte { b[headerBytes] = 1; return b }, ErrCorrupt, "do not end as"},
		{"raw payload longer", 0, func(b []byte) []byte { return append(b, 0, 0, 0, 0) }, ErrCorrupt, "388 bytes for 96"},
		{"raw infinity", 0, func(b []byte) []byte { le.PutUint32(b[headerBytes:], 0x7f800000); return b }, ErrCorrupt, "+Inf"},
	} {
		t.Run(c.name, func(t *testing.T) {
			coded := reseal(c.damage(encode(t, exampleChunk(1), c.step)))
			_, err := DecodeChunk(make([]float32, 10_000), coded)
			if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error is %v, want %v with %q", err, c.err, c.text)
			}
		})
	}
}

func TestEncodeRefusals(t *testing.T) {
	shape := exampleChunk(1).shape
	with := func(v float32) []float32 {
		coeffs := slices.Clone(exampleChunk(1).coeffs)
		coeffs[7] = v
		return coeffs
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		coeffs []float32
		shape  Shape
		step   float32
		err    error
	}{
		{"too few coefficients", with(0)[1:], shape, 1, ErrShape},
		{"no shape", with(0), Shape{}, 1, ErrShape},
		{"negative step", with(0), shape, StepFor(with(0), -1), ErrStep},
		{"infinite step", with(0), shape, inf, ErrStep},
		{"step not a number", with(0), shape, nan, ErrStep},
		{"coefficient not a number", with(nan), shape, 1, ErrRange},
		{"infinite coefficient", with(-inf), shape, 1, ErrRange},
		{"infinite coefficient, raw", with(inf), shape, 0, ErrRange},
	} {
		dst := []byte("kept")
		out, err := EncodeChunk(dst, c.coeffs, c.shape, c.step)
		if !errors.Is(err, c.err) || string(out) != "kept" {
			t.Errorf("%s: %q, %v, want %v", c.name, out, err, c.err)
		}
	}
}

// A chunk that cannot be coded, or would grow, is stored raw and therefore exact.
func TestFallbackToRaw(t *testing.T) {
	tooLarge := exampleChunk(1)
	tooLarge.coeffs[3] = 1e6
	overflows := exampleChunk(2)
	for k := range overflows.coeffs {
		overflows.coeffs[k] = math.MaxFloat32 // sum and difference are not finite
	}
	for _, c := range []struct {
		name  string
		chunk chunk
		step  float32
		raw   bool
	}{
		{"fits", exampleChunk(2), 50, false},
		{"fits closely", exampleChunk(1), 1e-3, false},
		{"too large for the step", tooLarge, 1e-3, true},
		{"overflows when rotated", overflows, 1, true},
	} {
		coded := encode(t, c.chunk, c.step)
		h, err := parseHeader(coded)
		if err != nil {
			t.Fatal(err)
		}
		if (h.kind == kindRaw) != c.raw {
			t.Errorf("%s: kind is %d", c.name, h.kind)
		}
		if got := decode(t, coded); c.raw && !slices.Equal(got.coeffs, c.chunk.coeffs) {
			t.Errorf("%s: stored raw, but changed", c.name)
		}
	}
}

// Coding stops at its limit, and writes nothing beyond it.
func TestLimit(t *testing.T) {
	c := exampleChunk(1)
	room := make([]byte, 40)
	if _, ok := encodeLevels(room[:0], 30, c.coeffs, c.shape, kindCoded, 1); ok {
		t.Error("a chunk was coded within a limit too small for it")
	}
	if !bytes.Equal(room[30:], make([]byte, 10)) {
		t.Errorf("bytes beyond the limit were written: %v", room[30:])
	}
	coded, ok := encodeLevels(nil, math.MaxInt, c.coeffs, c.shape, kindCoded, 1)
	if !ok {
		t.Fatal("a limit was met where there is none")
	}
	for limit := range coded {
		if _, ok := encodeLevels(nil, limit, c.coeffs, c.shape, kindCoded, 1); ok {
			t.Fatalf("%d bytes were coded within %d", len(coded), limit)
		}
	}
}

// With capacity for MaxEncodedSize the result is in the memory of dst.
func TestEncodeInPlace(t *testing.T) {
	c := exampleChunk(2)
	for _, step := range []float32{0, 1e-3, 50} {
		room := make([]byte, MaxEncodedSize(c.shape))
		coded, err := EncodeChunk(room[:0:len(room)], c.coeffs, c.shape, step)
		if err != nil {
			t.Fatal(err)
		}
		if &coded[0] != &room[:1][0] {
			t.Errorf("step %v: the result is in other memory", step)
		}
	}
}

func TestDecodeIntoTooLittleRoom(t *testing.T) {
	c := exampleChunk(1)
	coded := encode(t, c, 50)
	if _, err := DecodeChunk(make([]float32, len(c.coeffs)-1), coded); !errors.Is(err, ErrShort) {
		t.Errorf("error is %v, want ErrShort", err)
	}
	if s, err := DecodeChunk(make([]float32, len(c.coeffs)), coded); err != nil || s != c.shape {
		t.Errorf("got %+v, %v", s, err)
	}
}

// Chunks do not depend on each other: the second is the same without the first.
func TestChunksAreIndependent(t *testing.T) {
	first, second := exampleChunk(2), exampleChunk(2)
	slices.Reverse(second.coeffs)
	alone := encode(t, second, 50)
	encode(t, first, 1)
	if after := encode(t, second, 50); !bytes.Equal(alone, after) {
		t.Error("a chunk depends on the one before it")
	}
	decode(t, encode(t, first, 1))
	want := decode(t, alone)
	if got := decode(t, alone); !slices.Equal(got.coeffs, want.coeffs) {
		t.Error("decoding depends on the chunk before")
	}
}

// Two channels with the same content cost little more than one.
func TestSameChannelsAreRotated(t *testing.T) {
	mono := speech(t)
	both := clip{mono.rate, 2, make([]int16, 2*len(mono.pcm))}
	for i, v := range mono.pcm {
		both.pcm[2*i], both.pcm[2*i+1] = v, v
	}
	one, two := 0, 0
	for _, c := range analyse(t, mono, 512, 1000) {
		one += len(encode(t, c, 300))
	}
	for _, c := range analyse(t, both, 512, 1000) {
		coded := encode(t, c, 300*math.Sqrt2) // sqrt(2) the level
		if h, _ := parseHeader(coded); h.kind != kindRotated && c.coeffs[100] != 0 {
			t.Errorf("kind is %d, want %d", h.kind, kindRotated)
		}
		two += len(coded)
	}
	if float64(two) > 1.1*float64(one) {
		t.Errorf("two equal channels take %d bytes, one takes %d", two, one)
	}
}

func TestStepFor(t *testing.T) {
	for _, c := range []struct {
		name   string
		coeffs []float32
		ratio  float64
		want   float32
	}{
		{"lossless", []float32{3, 4}, 0, 0},
		{"refused", []float32{3, 4}, -2, -2},
		{"fraction of the level", []float32{300, -400, 0, 0}, 0.5, 125},
		{"silence", make([]float32, 10), 0.5, finestStep},
		{"nothing", nil, 0.5, finestStep},
		{"beyond", []float32{math.MaxFloat32}, 0.5, MaxStep},
	} {
		if got := StepFor(c.coeffs, c.ratio); got != c.want {
			t.Errorf("%s: step is %v, want %v", c.name, got, c.want)
		}
	}
}

func TestQuantise(t *testing.T) {
	levels := make([]int32, 6)
	if err := Quantise(levels, []float32{0, 5.4, 5.6, -5.4, -5.6, -30}, 10); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{0, 0, 1, 0, -1, -3}, levels); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
	coeffs := make([]float32, 6)
	Dequantise(coeffs, levels, 10)
	if diff := cmp.Diff([]float32{0, 0, 10, 0, -10, -30}, coeffs); diff != "" {
		t.Errorf("coefficients (-want +got):\n%s", diff)
	}
	if err := Quantise(levels, []float32{maxLevel}, 1); err != nil || levels[0] != maxLevel {
		t.Errorf("largest level: %d, %v", levels[0], err)
	}
	if err := Quantise(levels, []float32{maxLevel + 1}, 1); !errors.Is(err, ErrRange) {
		t.Errorf("beyond the largest level: %v, want ErrRange", err)
	}
	if err := Quantise(levels, []float32{1}, 0); !errors.Is(err, ErrStep) {
		t.Errorf("step 0: %v, want ErrStep", err)
	}
}

func TestSNR(t *testing.T) {
	for _, c := range []struct {
		name     string
		ref, got []int16
		want     float64
	}{
		{"same", []int16{1, 2}, []int16{1, 2}, math.Inf(1)},
		{"nothing", nil, nil, math.Inf(1)},
		{"silence", []int16{0}, []int16{0}, math.Inf(1)},
		{"noise over silence", []int16{0}, []int16{1}, math.Inf(-1)},
		{"a tenth", []int16{100, -100}, []int16{110, -110}, 20},
		{"extremes", []int16{-32768}, []int16{32767}, 20 * math.Log10(32768.0/65535)},
	} {
		if got := SNR(c.ref, c.got); got != c.want && math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v dB, want %v", c.name, got, c.want)
		}
	}
	var m SNRMeter
	m.Add([]int16{100}, []int16{110})
	m.Add([]int16{-100}, []int16{-110})
	if got := m.DB(); math.Abs(got-20) > 1e-9 {
		t.Errorf("piece by piece: %v dB, want 20", got)
	}
}
