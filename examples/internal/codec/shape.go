package codec

import (
	"fmt"
	"math"

	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
)

// Limits of a Shape.
const (
	ChunkFrames = 25 // frames of a chunk that Analysis makes, except the last
	MaxFrames   = 64
	MaxChannels = 2
	MaxRate     = math.MaxInt32
)

// coefficientBytes is the size of a float32.
const coefficientBytes = 4

// A Shape describes a chunk of coefficients, float32 in the order
// [Frames][Channels][Hop].
type Shape struct {
	Rate     int // samples a second of the PCM, in Hz
	Channels int // 1 or 2
	Frames   int // 0 in the only chunk of an empty stream
	Hop      int // coefficients of a frame of one channel; see mdct.CheckHop
	Samples  int // PCM samples of each channel that these frames complete
}

// Coefficients returns the number of float32 values of the chunk.
func (s Shape) Coefficients() int { return s.Frames * s.Channels * s.Hop }

// Validate returns nil if the Shape is within the limits, and otherwise an error
// that wraps ErrShape and names the field.
func (s Shape) Validate() error {
	if err := mdct.CheckHop(s.Hop); err != nil {
		return fmt.Errorf("%w: %w", ErrShape, err)
	}
	for _, field := range []struct {
		name            string
		value, min, max int
	}{
		{"rate", s.Rate, 1, MaxRate},
		{"channels", s.Channels, 1, MaxChannels},
		{"frames", s.Frames, 0, MaxFrames},
		{"samples", s.Samples, 0, s.Frames * s.Hop},
	} {
		if field.value < field.min || field.value > field.max {
			return fmt.Errorf("%w: %s is %d, must be from %d to %d",
				ErrShape, field.name, field.value, field.min, field.max)
		}
	}
	return nil
}

// frame returns the coefficients of one frame of one channel.
func (s Shape) frame(coeffs []float32, frame, channel int) []float32 {
	at := (frame*s.Channels + channel) * s.Hop
	return coeffs[at:][:s.Hop:s.Hop]
}
