package mdct

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// analyse returns all frames of a stream, pushed in pieces of the given sizes
// over and over.
func analyse(t testing.TB, hop int, samples []float64, pieces ...int) [][]float32 {
	t.Helper()
	a, err := NewAnalyzer(hop)
	if err != nil {
		t.Fatal(err)
	}
	var frames [][]float32
	frame := make([]float32, hop)
	keep := func() { frames = append(frames, append([]float32(nil), frame...)) }
	for i := 0; len(samples) > 0; i++ {
		piece := samples[:min(len(samples), max(1, pieces[i%len(pieces)]))]
		taken, ok := a.Push(frame, piece)
		if ok {
			keep()
		}
		samples = samples[taken:]
	}
	for a.Flush(frame) {
		keep()
	}
	return frames
}

// synthesise returns the first count samples of the frames.
func synthesise(t testing.TB, hop int, frames [][]float32, count int) []float64 {
	t.Helper()
	s, err := NewSynthesizer(hop)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float64, count)
	at := 0
	for _, frame := range frames {
		at += s.Push(got[at:], frame)
	}
	if at != count {
		t.Fatalf("%d frames gave %d samples, want %d", len(frames), at, count)
	}
	return got
}

func noise(seed uint64, n int, scale float64) []float64 {
	r := rand.New(rand.NewPCG(seed, 1))
	samples := make([]float64, n)
	for i := range samples {
		samples[i] = scale * (2*r.Float64() - 1)
	}
	return samples
}

func energy[T float32 | float64](v []T) (sum float64) {
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	return sum
}

func genHop() *rapid.Generator[int] {
	return rapid.SampledFrom([]int{16, 32, 64, 256, 512})
}

// A stream of any length, cut up in any way, is reconstructed, and the number of
// frames is FrameCount.
func TestReconstruction(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hop := genHop().Draw(rt, "hop")
		count := rapid.IntRange(0, 5*hop+1).Draw(rt, "samples")
		pieces := rapid.SliceOfN(rapid.IntRange(1, 3*hop), 1, 5).Draw(rt, "pieces")
		samples := noise(rapid.Uint64().Draw(rt, "seed"), count, 1)

		frames := analyse(t, hop, samples, pieces...)
		if want := FrameCount(count, hop); len(frames) != want {
			rt.Fatalf("%d frames, want %d", len(frames), want)
		}
		for i, got := range synthesise(t, hop, frames, count) {
			if math.Abs(got-samples[i]) > 1e-6 {
				rt.Fatalf("sample %d is %v, want %v", i, got, samples[i])
			}
		}
	})
}

// The frames have the energy of the samples: the lapped transform is orthonormal.
func TestEnergyIsKept(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hop := genHop().Draw(rt, "hop")
		count := rapid.IntRange(1, 6*hop).Draw(rt, "samples")
		samples := noise(rapid.Uint64().Draw(rt, "seed"), count, 1000)
		got := 0.0
		for _, frame := range analyse(t, hop, samples, hop) {
			got += energy(frame)
		}
		if want := energy(samples); math.Abs(got-want) > 1e-6*want {
			rt.Fatalf("energy of the frames is %v, of the samples %v", got, want)
		}
	})
}

// naiveMDCT is the definition, written down: O(N^2).
func naiveMDCT(block []float64) []float64 {
	hop := len(block) / 2
	n := float64(hop)
	out := make([]float64, hop)
	for k := range out {
		for i, x := range block {
			w := math.Sin(math.Pi / (2 * n) * (float64(i) + 0.5))
			out[k] += w * x * math.Cos(math.Pi/n*(float64(i)+0.5+n/2)*(float64(k)+0.5))
		}
		out[k] *= math.Sqrt(2 / n)
	}
	return out
}

func TestAgainstDefinition(t *testing.T) {
	for _, hop := range []int{16, 32, 128} {
		samples := noise(uint64(hop), 4*hop, 1)
		padded := append(append(make([]float64, hop), samples...), make([]float64, hop)...)
		for f, frame := range analyse(t, hop, samples, hop/2) {
			for k, want := range naiveMDCT(padded[f*hop:][:2*hop]) {
				if math.Abs(float64(frame[k])-want) > 1e-6 {
					t.Fatalf("hop %d, frame %d, coefficient %d is %v, want %v", hop, f, k, frame[k], want)
				}
			}
		}
	}
}

func TestFFTAgainstDefinition(t *testing.T) {
	for _, n := range []int{1, 2, 8, 64} {
		f := newFFT(n)
		in, z := make([]complex128, n), make([]complex128, n)
		re, im := noise(1, n, 1), noise(2, n, 1)
		for i := range in {
			in[i] = complex(re[i], im[i])
			z[f.reversed[i]] = in[i]
		}
		f.transform(z)
		for k := range z {
			var want complex128
			for i, x := range in {
				sin, cos := math.Sincos(-2 * math.Pi * float64(i*k%n) / float64(n))
				want += x * complex(cos, sin)
			}
			if d := z[k] - want; math.Hypot(real(d), imag(d)) > 1e-12*float64(n) {
				t.Fatalf("n %d, point %d is %v, want %v", n, k, z[k], want)
			}
		}
	}
}

// signals returns full-scale 16-bit signals of different spectra.
func signals(n int) map[string][]float64 {
	square, alternating, steps := make([]float64, n), make([]float64, n), make([]float64, n)
	random, chirp := noise(7, n, 1), make([]float64, n)
	for i := range n {
		square[i] = 32767
		if i/37%2 == 1 {
			square[i] = -32768
		}
		alternating[i] = 32767 - 65535*float64(i%2)
		steps[i] = float64(i*7919%65536 - 32768)
		chirp[i] = math.Round(32767 * math.Sin(float64(i)*float64(i)*1e-4))
		random[i] = math.Copysign(32768, random[i])
	}
	return map[string][]float64{
		"square": square, "alternating": alternating, "steps": steps, "chirp": chirp, "random signs": random,
	}
}

// Full-scale 16-bit samples survive float32 coefficients at every hop within the
// bound that the package doc derives.
func TestFloat32CoefficientsSuffice(t *testing.T) {
	for hop := MinHop; hop <= MaxHop; hop *= 2 {
		bound := math.Sqrt(3*float64(hop)) / 512
		if bound >= 0.5 {
			t.Fatalf("hop %d: the proven bound %v does not keep integers apart", hop, bound)
		}
		for name, samples := range signals(max(1000, 5*hop/2)) {
			worst := 0.0
			got := synthesise(t, hop, analyse(t, hop, samples, hop), len(samples))
			for i := range got {
				worst = max(worst, math.Abs(got[i]-samples[i]))
			}
			if worst > bound {
				t.Errorf("hop %d, %s: worst error %v LSB, proven bound %v", hop, name, worst, bound)
			}
		}
	}
}

// The step of the proof that rests on the transform: the weights with which one
// sample depends on the coefficients have unit norm, and are those of two frames.
func TestSampleDependsOnTwoFramesWithUnitNorm(t *testing.T) {
	const hop, frames = 16, 4
	weights := make([]float64, (frames-1)*hop)
	for f := range frames {
		for k := range hop {
			impulse := make([][]float32, frames)
			for i := range impulse {
				impulse[i] = make([]float32, hop)
			}
			impulse[f][k] = 1
			for i, w := range synthesise(t, hop, impulse, len(weights)) {
				if w != 0 && f != i/hop && f != i/hop+1 {
					t.Fatalf("sample %d depends on frame %d", i, f)
				}
				weights[i] += w * w
			}
		}
	}
	for i, norm := range weights {
		if math.Abs(norm-1) > 1e-12 {
			t.Fatalf("the weights of sample %d have square norm %v, want 1", i, norm)
		}
	}
}

// After Flush and Reset the same objects give the same result for a new stream.
func TestReuse(t *testing.T) {
	const hop = 32
	a, _ := NewAnalyzer(hop)
	s, _ := NewSynthesizer(hop)
	frame := make([]float32, hop)
	for stream := range 3 {
		samples := noise(uint64(stream), 2*hop, 1)
		var got []float64
		push := func() {
			out := make([]float64, hop)
			got = append(got, out[:s.Push(out, frame)]...)
		}
		for rest := samples; len(rest) > 0; {
			taken, ok := a.Push(frame, rest)
			if rest = rest[taken:]; ok {
				push()
			}
		}
		for a.Flush(frame) {
			push()
		}
		for i := range samples {
			if math.Abs(got[i]-samples[i]) > 1e-6 {
				t.Fatalf("stream %d, sample %d is %v, want %v", stream, i, got[i], samples[i])
			}
		}
		s.Reset()
		if s.Ready() != 0 {
			t.Fatalf("after Reset the first frame completes %d samples, want 0", s.Ready())
		}
	}
}

func TestHops(t *testing.T) {
	for _, hop := range []int{-16, 0, 1, 8, 17, 500, 8192} {
		if _, err := NewAnalyzer(hop); !errors.Is(err, ErrHop) {
			t.Errorf("NewAnalyzer(%d): %v, want ErrHop", hop, err)
		}
		if _, err := NewSynthesizer(hop); !errors.Is(err, ErrHop) {
			t.Errorf("NewSynthesizer(%d): %v, want ErrHop", hop, err)
		}
	}
	for _, c := range []struct{ rate, hop int }{
		{-1, 16},
		{0, 16},
		{1, 16},
		{8000, 128},
		{16000, 256},
		{22050, 512},
		{24000, 512},
		{44100, 1024},
		{48000, 1024},
		{384000, 4096},
		{math.MaxInt, 4096},
	} {
		if got := HopFor(c.rate); got != c.hop {
			t.Errorf("HopFor(%d) = %d, want %d", c.rate, got, c.hop)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	const hop = 512
	a, _ := NewAnalyzer(hop)
	s, _ := NewSynthesizer(hop)
	samples, frame, out := noise(1, hop, 1), make([]float32, hop), make([]float64, hop)
	if n := testing.AllocsPerRun(10, func() {
		a.Push(frame, samples)
		s.Push(out, frame)
	}); n != 0 {
		t.Errorf("a frame there and back allocates %v times, want 0", n)
	}
}

const pcmBytes = 2 // of the 16-bit samples that the speeds refer to

func BenchmarkAnalyse(b *testing.B) {
	const hop = 512
	a, _ := NewAnalyzer(hop)
	samples, frame := noise(1, hop, 1), make([]float32, hop)
	b.SetBytes(hop * pcmBytes)
	for b.Loop() {
		a.Push(frame, samples)
	}
}

func BenchmarkSynthesise(b *testing.B) {
	const hop = 512
	s, _ := NewSynthesizer(hop)
	frame, out := make([]float32, hop), make([]float64, hop)
	for k, v := range noise(1, hop, 1) {
		frame[k] = float32(v)
	}
	b.SetBytes(hop * pcmBytes)
	for b.Loop() {
		s.Push(out, frame)
	}
}
