package codec

import (
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

const (
	speechFile = "../../speech/testdata/speech.wav"
	pcmBytes   = 2 // of a 16-bit sample
)

// clip is interleaved PCM with its format.
type clip struct {
	rate, channels int
	pcm            []int16
}

// speech returns the recording that the example ships with.
func speech(t testing.TB) clip {
	t.Helper()
	file, err := os.Open(speechFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := wav.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	c := clip{rate: r.Format().Rate, channels: r.Format().Channels}
	for buf := make([]int16, 4096); ; {
		n, err := r.ReadSamples(buf)
		c.pcm = append(c.pcm, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return c
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// stereoSpeech returns a second or so at 44.1 kHz: a voice-like sum of harmonics
// in the middle, and a noise to the left.
func stereoSpeech() clip {
	const rate, seconds = 44100, 1.2
	c := clip{rate: rate, channels: 2}
	r := rand.New(rand.NewPCG(3, 4))
	for i := range int(rate * seconds) {
		at := float64(i) / rate
		voice, pitch := 0.0, 120+20*math.Sin(3*at)
		for h := 1.0; h <= 20; h++ {
			voice += math.Sin(2*math.Pi*h*pitch*at) / h
		}
		voice *= 4000 * (0.6 + 0.4*math.Sin(2*math.Pi*4*at))
		c.pcm = append(c.pcm, int16(voice+300*r.NormFloat64()), int16(voice))
	}
	return c
}

func whiteNoise(n int, level float64) []int16 {
	r := rand.New(rand.NewPCG(5, 6))
	pcm := make([]int16, n)
	for i := range pcm {
		pcm[i] = int16(min(max(math.Round(level*r.NormFloat64()), math.MinInt16), math.MaxInt16))
	}
	return pcm
}

// square returns a square wave of full scale, in antiphase on odd channels.
func square(n, channels int) []int16 {
	pcm := make([]int16, n*channels)
	for i := range pcm {
		pcm[i] = math.MaxInt16
		if (i/channels/50+i%channels)%2 == 1 {
			pcm[i] = math.MinInt16
		}
	}
	return pcm
}

// sliceSource delivers PCM in pieces of up to the given number of values.
type sliceSource struct {
	pcm   []int16
	piece int
	err   error // at the end, instead of io.EOF
}

func (s *sliceSource) ReadSamples(pcm []int16) (int, error) {
	if len(s.pcm) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		return 0, io.EOF
	}
	n := copy(pcm[:min(len(pcm), max(1, s.piece))], s.pcm)
	s.pcm = s.pcm[n:]
	return n, nil
}

// chunk is a chunk of coefficients as Analysis makes it.
type chunk struct {
	shape  Shape
	coeffs []float32
}

func analyse(t testing.TB, c clip, hop, piece int) []chunk {
	t.Helper()
	a, err := NewAnalysis(&sliceSource{pcm: c.pcm, piece: piece * c.channels}, c.rate, c.channels, hop)
	if err != nil {
		t.Fatal(err)
	}
	var chunks []chunk
	for {
		coeffs := make([]float32, a.FullShape().Coefficients())
		shape, err := a.Next(coeffs)
		if err == io.EOF {
			return chunks
		}
		if err != nil {
			t.Fatal(err)
		}
		chunks = append(chunks, chunk{shape, coeffs[:shape.Coefficients()]})
	}
}

func encode(t testing.TB, c chunk, step float32) []byte {
	t.Helper()
	out, err := EncodeChunk(nil, c.coeffs, c.shape, step)
	if err != nil {
		t.Fatal(err)
	}
	if limit := MaxEncodedSize(c.shape); len(out) > limit {
		t.Fatalf("coded in %d bytes, the limit is %d", len(out), limit)
	}
	return out
}

func decode(t testing.TB, coded []byte) chunk {
	t.Helper()
	shape, err := ChunkShape(coded)
	if err != nil {
		t.Fatal(err)
	}
	c := chunk{shape, make([]float32, shape.Coefficients())}
	if _, err := DecodeChunk(c.coeffs, coded); err != nil {
		t.Fatal(err)
	}
	return c
}

func synthesise(t testing.TB, chunks []chunk) []int16 {
	t.Helper()
	s, err := NewSynthesis(chunks[0].shape.Channels, chunks[0].shape.Hop)
	if err != nil {
		t.Fatal(err)
	}
	var pcm []int16
	for _, c := range chunks {
		room := make([]int16, c.shape.Samples*c.shape.Channels)
		n, err := s.Next(room, c.coeffs, c.shape)
		if err != nil {
			t.Fatal(err)
		}
		pcm = append(pcm, room[:n]...)
	}
	return pcm
}

// roundTrip takes a clip through all stages and returns it with its coded size.
func roundTrip(t testing.TB, c clip, hop int, ratio float64) (pcm []int16, codedBytes int) {
	t.Helper()
	chunks := analyse(t, c, hop, 1000)
	for i, c := range chunks {
		coded := encode(t, c, StepFor(c.coeffs, ratio))
		codedBytes += len(coded)
		chunks[i] = decode(t, coded)
		if chunks[i].shape != c.shape {
			t.Fatalf("chunk %d came back as %+v, was %+v", i, chunks[i].shape, c.shape)
		}
	}
	return synthesise(t, chunks), codedBytes
}
