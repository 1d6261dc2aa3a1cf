package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
)

// MaxEncodedSize returns the size in bytes that EncodeChunk needs at most for a
// chunk of that shape: a little over the coefficients themselves.
func MaxEncodedSize(shape Shape) int {
	return headerBytes + coefficientBytes*shape.Coefficients()
}

// EncodeChunk appends the coded chunk to dst and returns the result. It is in
// the memory of dst if that has capacity for MaxEncodedSize(shape) more bytes. The
// step is in units of one 16-bit level, 0 for lossless; see StepFor.
//
// An error wraps ErrShape, ErrStep or ErrRange, the last for coefficients that
// are not finite; dst is then returned unchanged.
func EncodeChunk(dst []byte, coeffs []float32, shape Shape, step float32) ([]byte, error) {
	if err := shape.Validate(); err != nil {
		return dst, err
	}
	if len(coeffs) != shape.Coefficients() {
		return dst, fmt.Errorf("%w: %d coefficients with %+v, must be %d",
			ErrShape, len(coeffs), shape, shape.Coefficients())
	}
	if err := checkStep(step); err != nil {
		return dst, err
	}
	if err := checkFinite(coeffs); err != nil {
		return dst, err
	}
	start, size := len(dst), MaxEncodedSize(shape)
	out := slices.Grow(dst, size)[:start+headerBytes]
	h := header{shape: shape, kind: kindRaw}
	if step > 0 {
		kind := kindFor(coeffs, shape)
		if coded, ok := encodeLevels(out, start+size, coeffs, shape, kind, step); ok {
			h.kind, h.step, out = kind, step, coded
		}
	}
	if h.kind == kindRaw {
		out = appendRaw(out, coeffs)
	}
	h.seal(out[start:])
	return out, nil
}

func appendRaw(out []byte, coeffs []float32) []byte {
	for _, v := range coeffs {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

// kindFor decides between the channels themselves and their sum and difference.
// The sum of the magnitudes stands for the size that either would have: it is
// the smaller, the fewer coefficients hold the energy, which is the same.
func kindFor(coeffs []float32, shape Shape) kind {
	if shape.Channels != 2 {
		return kindCoded
	}
	plain, rotated := 0.0, 0.0
	for f := range shape.Frames {
		left, right := shape.frame(coeffs, f, 0), shape.frame(coeffs, f, 1)
		for k := range left {
			l, r := float64(left[k]), float64(right[k])
			plain += math.Abs(l) + math.Abs(r)
			rotated += (math.Abs(l+r) + math.Abs(l-r)) * math.Sqrt2 / 2
		}
	}
	if rotated < plain {
		return kindRotated
	}
	return kindCoded
}

// rotate puts the sum and the difference of two channels, scaled to keep their
// energy, into a and b. It is its own inverse, and its arguments may overlap
// entirely.
func rotate(a, b, left, right []float32) {
	for k := range left {
		l, r := left[k], right[k]
		a[k], b[k] = (l+r)*(math.Sqrt2/2), (l-r)*(math.Sqrt2/2)
	}
}

// scratch is what coding a chunk needs besides its arguments.
type scratch struct {
	model  model
	lanes  [MaxChannels]lane
	levels []int32
	a, b   []float32 // two rotated channels
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// borrow returns a scratch for one chunk. It goes back with scratches.Put.
func borrow(shape Shape) *scratch {
	s := scratches.Get().(*scratch)
	s.model.reset()
	for channel := range shape.Channels {
		s.lanes[channel].reset(shape.Hop)
	}
	s.levels = slices.Grow(s.levels[:0], shape.Hop)[:shape.Hop]
	s.a = slices.Grow(s.a[:0], shape.Hop)[:shape.Hop]
	s.b = slices.Grow(s.b[:0], shape.Hop)[:shape.Hop]
	return s
}

// encodeLevels appends the range-coded levels to out. It reports false if they
// do not fit below the limit, or a coefficient is too large for the step.
func encodeLevels(out []byte, limit int, coeffs []float32, shape Shape, kind kind, step float32) ([]byte, bool) {
	s := borrow(shape)
	defer scratches.Put(s)
	e := newRangeEncoder(out, limit)
	for f := range shape.Frames {
		for channel := range shape.Channels {
			row := shape.frame(coeffs, f, channel)
			if kind == kindRotated {
				if channel == 0 {
					rotate(s.a, s.b, row, shape.frame(coeffs, f, 1))
				}
				row = [...][]float32{s.a, s.b}[channel]
			}
			if err := Quantise(s.levels, row, step); err != nil || e.full {
				return nil, false
			}
			s.encodeRow(e, channel)
		}
	}
	return e.finish()
}

// encodeRow codes the levels of one frame of one channel.
func (s *scratch) encodeRow(e *rangeEncoder, channel int) {
	lane := &s.lanes[channel]
	for k, level := range s.levels {
		s.model.encode(e, channel, lane.context(k), level)
		lane.set(k, level)
	}
	lane.advance()
}
