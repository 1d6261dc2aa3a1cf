package codec

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
)

// A Source delivers interleaved PCM. ReadSamples fills the front of pcm, whose
// length is a multiple of the number of channels, with at least one sample of
// every channel, and returns the number of values; at the end io.EOF.
type Source interface {
	ReadSamples(pcm []int16) (n int, err error)
}

// maxEmptyReads bounds how often a Source may deliver nothing without an error.
const maxEmptyReads = 100

// An Analysis makes chunks of coefficients from PCM as it is read.
type Analysis struct {
	src       Source
	full      Shape // of a chunk with all its frames
	analyzers []*mdct.Analyzer
	pcm       []int16
	samples   []float64 // of one channel
	read      int       // samples read of each channel
	frames    int       // frames made so far
	completed int       // samples that these complete, of each channel
	chunks    int
	err       error // of src; io.EOF is its end
}

// NewAnalysis returns an Analysis of the interleaved PCM that src delivers. An
// error wraps ErrShape.
func NewAnalysis(src Source, rate, channels, hop int) (*Analysis, error) {
	shape := Shape{Rate: rate, Channels: channels, Frames: ChunkFrames, Hop: hop, Samples: ChunkFrames * hop}
	if err := shape.Validate(); err != nil {
		return nil, err
	}
	a := &Analysis{
		src:     src,
		full:    shape,
		pcm:     make([]int16, hop*channels),
		samples: make([]float64, hop),
	}
	for range channels {
		analyzer, err := mdct.NewAnalyzer(hop)
		if err != nil {
			return nil, err
		}
		a.analyzers = append(a.analyzers, analyzer)
	}
	return a, nil
}

// FullShape returns the shape of a full chunk, which is the largest, for allocating
// memory.
func (a *Analysis) FullShape() Shape { return a.full }

// Next reads until a chunk is complete, puts its coefficients into the front of
// dst and returns its shape. dst must hold a full chunk. After the last
// chunk the error is io.EOF. Any other error wraps ErrShort or is that of the
// Source; an error of the Source repeats at every further call.
func (a *Analysis) Next(dst []float32) (Shape, error) {
	if len(dst) < a.full.Coefficients() {
		return Shape{}, fmt.Errorf("%w: room for %d coefficients, a full chunk has %d",
			ErrShort, len(dst), a.full.Coefficients())
	}
	shape := a.full
	shape.Frames = 0
	for shape.Frames < ChunkFrames {
		ok, err := a.frame(dst[shape.Coefficients():])
		if err != nil {
			return Shape{}, fmt.Errorf("codec: read PCM: %w", err)
		}
		if !ok {
			break
		}
		shape.Frames++
	}
	if shape.Frames == 0 && a.chunks > 0 {
		return Shape{}, io.EOF
	}
	a.chunks++
	a.frames += shape.Frames
	// The frames are one block ahead of the samples they complete.
	completed := min(a.read, max(0, a.frames-1)*a.full.Hop)
	shape.Samples = completed - a.completed
	a.completed = completed
	return shape, nil
}

// frame makes one frame of every channel at the front of dst. It reports false
// at the end of the stream.
func (a *Analysis) frame(dst []float32) (ok bool, err error) {
	for a.err == nil {
		n, err := a.readSamples()
		a.err = err
		if a.push(dst, a.pcm[:n]) {
			return true, nil
		}
	}
	if !errors.Is(a.err, io.EOF) {
		return false, a.err
	}
	for channel, analyzer := range a.analyzers {
		ok = analyzer.Flush(dst[channel*a.full.Hop:])
	}
	return ok, nil
}

// push gives interleaved samples, no more than complete a frame, to the
// analyzers and reports whether one is complete.
func (a *Analysis) push(dst []float32, pcm []int16) (ok bool) {
	n := len(pcm) / a.full.Channels
	a.read += n
	for channel, analyzer := range a.analyzers {
		for i := range n {
			a.samples[i] = float64(pcm[i*a.full.Channels+channel])
		}
		_, ok = analyzer.Push(dst[channel*a.full.Hop:], a.samples[:n])
	}
	return ok
}

// readSamples reads at most what completes the next frame into pcm.
func (a *Analysis) readSamples() (int, error) {
	need := a.analyzers[0].Need() * a.full.Channels
	for range maxEmptyReads {
		n, err := a.src.ReadSamples(a.pcm[:need])
		if n < 0 || n > need || n%a.full.Channels != 0 {
			return 0, fmt.Errorf("source delivered %d values of %d for %d channels", n, need, a.full.Channels)
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// A Synthesis makes PCM from the chunks of one stream, in their order.
type Synthesis struct {
	channels, hop int
	synthesizers  []*mdct.Synthesizer
	samples       []float64 // of one channel
}

// NewSynthesis returns a Synthesis at the start of a stream whose chunks have
// that number of channels and that hop. An error wraps ErrShape.
func NewSynthesis(channels, hop int) (*Synthesis, error) {
	if err := (Shape{Rate: 1, Channels: channels, Hop: hop}).Validate(); err != nil {
		return nil, err
	}
	s := &Synthesis{channels: channels, hop: hop, samples: make([]float64, hop)}
	for range channels {
		synthesizer, err := mdct.NewSynthesizer(hop)
		if err != nil {
			return nil, err
		}
		s.synthesizers = append(s.synthesizers, synthesizer)
	}
	return s, nil
}

// Next puts the samples that a chunk completes, interleaved, into the front of
// pcm, which must hold Samples*Channels values, and returns their number.
// Values beyond 16 bits are cut off there. An error wraps ErrShape or ErrShort
// and leaves the Synthesis as it was.
func (s *Synthesis) Next(pcm []int16, coeffs []float32, shape Shape) (n int, err error) {
	if err := s.check(coeffs, shape); err != nil {
		return 0, err
	}
	n = shape.Samples * s.channels
	if len(pcm) < n {
		return 0, fmt.Errorf("%w: room for %d PCM values, the chunk completes %d", ErrShort, len(pcm), n)
	}
	for channel, synthesizer := range s.synthesizers {
		at := 0
		for f := range shape.Frames {
			block := s.samples[:min(s.hop, shape.Samples-at)]
			done := synthesizer.Push(block, shape.frame(coeffs, f, channel))
			for i, v := range block[:done] {
				pcm[(at+i)*s.channels+channel] = toPCM(v)
			}
			at += done
		}
	}
	return n, nil
}

func (s *Synthesis) check(coeffs []float32, shape Shape) error {
	if err := shape.Validate(); err != nil {
		return err
	}
	if shape.Channels != s.channels || shape.Hop != s.hop {
		return fmt.Errorf("%w: %+v in a stream of %d channels and hop %d", ErrShape, shape, s.channels, s.hop)
	}
	if len(coeffs) != shape.Coefficients() {
		return fmt.Errorf("%w: %d coefficients with %+v, must be %d",
			ErrShape, len(coeffs), shape, shape.Coefficients())
	}
	// The first frame of a stream completes nothing, all others a hop.
	complete := shape.Frames * s.hop
	if shape.Frames > 0 {
		complete += s.synthesizers[0].Ready() - s.hop
	}
	if shape.Samples > complete {
		return fmt.Errorf("%w: %d samples, the frames complete %d here", ErrShape, shape.Samples, complete)
	}
	return nil
}

// toPCM rounds to the nearest 16-bit sample. NaN becomes the lowest sample, so that
// the result does not depend on the machine.
func toPCM(v float64) int16 {
	if !(v > math.MinInt16) {
		return math.MinInt16
	}
	return int16(math.Round(min(v, math.MaxInt16)))
}
