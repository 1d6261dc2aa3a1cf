package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
)

// pythonClient is where the client that pipeline.yaml uses lies.
const pythonClient = "../../clients/python/src"

// python prepares a Python that finds quantise.py and the client.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	readFile(t, "quantise.py") // so that a change invalidates a cached test result
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH=."+string(filepath.ListSeparator)+pythonClient)
	cmd.Stderr = t.Output()
	return cmd
}

// asked is a chunk to be coded.
type asked struct {
	name    string
	quality float64
	shape   codec.Shape
	coeffs  []float32
}

// For all coefficients, the talker in Python makes the same bytes as the one in Go, or
// refuses the same chunks.
func TestQuantisersAgree(t *testing.T) {
	var chunks []asked
	for _, quality := range []float64{0, 1e-300, 1e-5, 0.01, 0.1, codec.DefaultRatio, 1, 3, 1e300} {
		for _, c := range chunksToCode(t) {
			c.quality = quality
			chunks = append(chunks, c)
		}
	}
	for i, got := range codeInPython(t, chunks) {
		c := chunks[i]
		want, err := codec.EncodeChunk(nil, c.coeffs, c.shape, codec.StepFor(c.coeffs, c.quality))
		if err != nil {
			want = nil
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s, quality %v, %+v: %d bytes from Python, %d from Go (%v), not the same",
				c.name, c.quality, c.shape, len(got), len(want), err)
		}
	}
}

// codeInPython returns the coded chunks; nil for a refused one.
func codeInPython(t *testing.T, chunks []asked) [][]byte {
	t.Helper()
	var in bytes.Buffer
	put := func(v any) {
		if err := binary.Write(&in, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range chunks {
		put(c.quality)
		for _, n := range []int{c.shape.Rate, c.shape.Channels, c.shape.Frames, c.shape.Hop, c.shape.Samples} {
			put(uint32(n))
		}
		put(c.coeffs)
	}
	cmd := python(t, "testdata/encode_chunks.py")
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var coded [][]byte
	for range chunks {
		if len(out) < 4 || uint32(len(out)-4) < binary.LittleEndian.Uint32(out) {
			t.Fatalf("%d chunks of output, %d of input", len(coded), len(chunks))
		}
		size := binary.LittleEndian.Uint32(out)
		coded, out = append(coded, out[4:4+size]), out[4+size:]
	}
	return coded
}

// chunksToCode returns chunks that take every path through the coder.
func chunksToCode(t *testing.T) []asked {
	t.Helper()
	_, speech := readWAV(t, sample)
	chunks := analyse(t, "speech", 22050, 1, speech[:2*codec.ChunkFrames*512+100])
	chunks = append(chunks, analyse(t, "loud", 8000, 1, sweep(3000))...)
	chunks = append(chunks, analyse(t, "silence", 8000, 2, make([]int16, 1000))...)
	chunks = append(chunks, analyse(t, "empty", 8000, 1, nil)...)
	r := rand.New(rand.NewPCG(1, 2))
	alike, noise := make([]int16, 8000), make([]int16, 8000)
	for i := range alike {
		noise[i] = int16(1000 * r.NormFloat64())
		alike[i] = noise[i&^1] + int16(10*r.NormFloat64())
	}
	chunks = append(chunks, analyse(t, "channels alike", 16000, 2, alike)...)
	chunks = append(chunks, analyse(t, "two noises", 16000, 2, noise)...)

	shape := codec.Shape{Rate: 1, Channels: 2, Frames: 25, Hop: 16, Samples: 3}
	made := func(name string, value func(i int) float64) {
		coeffs := make([]float32, shape.Coefficients())
		for i := range coeffs {
			coeffs[i] = float32(value(i))
		}
		chunks = append(chunks, asked{name: name, shape: shape, coeffs: coeffs})
	}
	// With ten bits between neighbours, the predictions are nearly all wrong.
	made("wild", func(int) float64 { return math.Ldexp(r.NormFloat64(), r.IntN(20)) })
	made("a few peaks", func(i int) float64 { return float64(i/381) * 1.2e5 })
	// As float64, some of these sums would round to another level.
	made("wild and alike", func(i int) float64 { return math.Ldexp(1+r.Float64(), 12+i/160) })
	made("huge", func(int) float64 { return math.MaxFloat32 * (r.Float64() - 0.5) })
	made("largest", func(i int) float64 { return math.MaxFloat32 * float64(1-2*(i%2)) })
	made("denormal", func(i int) float64 { return math.SmallestNonzeroFloat32 * float64(i%3) })
	// The rounding of a level falls on either side of these.
	made("on the edge", func(i int) float64 { return 0.25 * (float64(i) + 0.55) })
	made("not a number", func(i int) float64 { return math.Log(float64(i - 1)) })
	made("infinite", func(i int) float64 { return 1 / float64(i) })
	return chunks
}

func analyse(t *testing.T, name string, rate, channels int, pcm []int16) []asked {
	t.Helper()
	a, err := codec.NewAnalysis((*recording)(&pcm), rate, channels, mdct.HopFor(rate))
	if err != nil {
		t.Fatal(err)
	}
	var chunks []asked
	for {
		coeffs := make([]float32, a.FullShape().Coefficients())
		shape, err := a.Next(coeffs)
		if errors.Is(err, io.EOF) {
			return chunks
		}
		if err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, asked{name: name, shape: shape, coeffs: coeffs[:shape.Coefficients()]})
	}
}

// recording is a codec.Source.
type recording []int16

func (s *recording) ReadSamples(dst []int16) (int, error) {
	if len(*s) == 0 {
		return 0, io.EOF
	}
	n := copy(dst, *s)
	*s = (*s)[n:]
	return n, nil
}
