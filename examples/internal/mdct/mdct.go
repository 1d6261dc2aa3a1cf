package mdct

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Bounds of the hop N. The largest keeps 16-bit samples exact through float32
// coefficients with a margin (see the package doc).
const (
	MinHop = 16
	MaxHop = 4096
)

// ErrHop says that a hop is not a power of two from MinHop to MaxHop.
var ErrHop = errors.New("mdct: hop must be a power of two from 16 to 4096")

// CheckHop returns nil if hop is one that this package can use, and an error
// that wraps ErrHop if not.
func CheckHop(hop int) error {
	if hop < MinHop || hop > MaxHop || hop&(hop-1) != 0 {
		return fmt.Errorf("%w: got %d", ErrHop, hop)
	}
	return nil
}

// hopSeconds is the hop that HopFor comes close to: long enough to resolve the
// harmonics of a voice, short enough to keep its plosives apart.
const hopSeconds = 0.020

// HopFor returns the hop for a sample rate in Hz: the power of two nearest to
// 20 ms on a logarithmic scale, within the bounds. It is 256 at 16 kHz, 512 at
// 22.05 and 24 kHz, 1024 at 44.1 and 48 kHz.
func HopFor(rate int) int {
	exact := math.Log2(max(1, float64(rate)) * hopSeconds)
	exponent := max(0, int(math.Round(exact)))
	return min(max(MinHop, 1<<min(exponent, bits.Len(MaxHop))), MaxHop)
}

// FrameCount returns the number of frames that an Analyzer makes of a stream of
// that many samples, Flush included.
func FrameCount(samples, hop int) int {
	if samples == 0 {
		return 0
	}
	return (samples+hop-1)/hop + 1
}

// An Analyzer turns the samples of one channel into frames of coefficients.
type Analyzer struct {
	hop    int
	window []float64 // rising half; the falling half is its mirror image
	block  []float64 // 2*hop samples: the block before, the block being filled
	filled int       // samples in the second half of block
	tail   bool      // samples were pushed whose last frame is still to come
	folded []float64
	dct    *dct4
}

// NewAnalyzer returns an Analyzer at the start of a stream. An error wraps
// ErrHop.
func NewAnalyzer(hop int) (*Analyzer, error) {
	if err := CheckHop(hop); err != nil {
		return nil, err
	}
	return &Analyzer{
		hop:    hop,
		window: sineWindow(hop),
		block:  make([]float64, 2*hop),
		folded: make([]float64, hop),
		dct:    newDCT4(hop),
	}, nil
}

// Need returns the number of samples that complete the next frame: from 1 to
// the hop.
func (a *Analyzer) Need() int { return a.hop - a.filled }

// Push takes samples from src until src is used up or a frame is complete. It
// returns the number taken, at most Need, and whether frame, which must hold hop
// coefficients, now has a frame. It writes to frame only then.
func (a *Analyzer) Push(frame []float32, src []float64) (taken int, ok bool) {
	taken = copy(a.block[a.hop+a.filled:], src)
	a.filled += taken
	a.tail = a.tail || taken > 0
	if a.filled < a.hop {
		return taken, false
	}
	a.emit(frame)
	return taken, true
}

// Flush ends the stream. It completes what remains with zeros, one frame a
// call, and returns whether frame holds one; call it until it returns false, at
// most three times. After that the Analyzer is at the start of a new stream.
func (a *Analyzer) Flush(frame []float32) (ok bool) {
	if !a.tail {
		return false
	}
	// A block that was begun needs a frame of its own before the last one.
	a.tail = a.filled > 0
	clear(a.block[a.hop+a.filled:])
	a.emit(frame)
	return true
}

// emit transforms the full block and moves on by one hop.
func (a *Analyzer) emit(frame []float32) {
	a.fold()
	a.dct.transform(a.folded)
	frame = frame[:a.hop]
	for k, v := range a.folded {
		frame[k] = float32(v)
	}
	copy(a.block, a.block[a.hop:])
	a.filled = 0
}

// fold windows the block (a, b | c, d), each letter half a hop, and folds it
// into (-reverse(c)-d, a-reverse(b)), whose DCT-IV is the block's MDCT.
func (a *Analyzer) fold() {
	half := a.hop / 2
	before, after := a.block[:a.hop], a.block[a.hop:]
	for n := range half {
		lo, hi := a.window[n], a.window[a.hop-1-n] // rising half at n, and at its mirror
		mid, midMirror := a.window[half+n], a.window[half-1-n]
		a.folded[n] = -mid*after[half-1-n] - midMirror*after[half+n]
		a.folded[half+n] = lo*before[n] - hi*before[a.hop-1-n]
	}
}

// A Synthesizer turns frames back into the samples of one channel.
type Synthesizer struct {
	hop     int
	window  []float64
	overlap []float64 // the part of the frame before in the block being completed
	started bool
	folded  []float64
	dct     *dct4
}

// NewSynthesizer returns a Synthesizer at the start of a stream. An error wraps
// ErrHop.
func NewSynthesizer(hop int) (*Synthesizer, error) {
	if err := CheckHop(hop); err != nil {
		return nil, err
	}
	return &Synthesizer{
		hop:     hop,
		window:  sineWindow(hop),
		overlap: make([]float64, hop),
		folded:  make([]float64, hop),
		dct:     newDCT4(hop),
	}, nil
}

// Ready returns the number of samples that the next frame completes: none for
// the first frame of a stream, the hop after that.
func (s *Synthesizer) Ready() int {
	if !s.started {
		return 0
	}
	return s.hop
}

// Push takes a frame of hop coefficients and writes the samples it completes to
// the front of dst: Ready samples, or len(dst) if that is less, which is how the
// padding of the last block is cut. It returns the number written.
func (s *Synthesizer) Push(dst []float64, frame []float32) int {
	for k, v := range frame[:s.hop] {
		s.folded[k] = float64(v)
	}
	s.dct.transform(s.folded)
	n := min(s.Ready(), len(dst))
	s.unfold(dst[:n])
	s.started = true
	return n
}

// unfold undoes fold with the time aliasing still in it: from (p, q) it makes
// the block (q, -reverse(q) | -reverse(p), -p) and windows it. Adding the first
// half to the second half of the block before cancels the aliasing.
func (s *Synthesizer) unfold(dst []float64) {
	half := s.hop / 2
	p, q := s.folded[:half], s.folded[half:]
	for n := range dst {
		var v float64
		if n < half {
			v = q[n]
		} else {
			v = -q[s.hop-1-n]
		}
		dst[n] = s.overlap[n] + s.window[n]*v
	}
	for n := range half {
		s.overlap[n] = -s.window[s.hop-1-n] * p[half-1-n]
		s.overlap[half+n] = -s.window[half-1-n] * p[n]
	}
}

// Reset puts the Synthesizer at the start of a new stream. What overlaps into it
// from the old one goes with the first frame, which completes no sample.
func (s *Synthesizer) Reset() { s.started = false }

// sineWindow returns the rising half of the sine window of 2*hop points. With
// its mirror image it meets the condition of perfect reconstruction: the squares
// of the two halves add up to one.
func sineWindow(hop int) []float64 {
	w := make([]float64, hop)
	for n := range w {
		w[n] = math.Sin(math.Pi / float64(2*hop) * (float64(n) + 0.5))
	}
	return w
}
