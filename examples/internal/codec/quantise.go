package codec

import (
	"fmt"
	"math"
)

const (
	// DefaultRatio is the step, as a fraction of a chunk's level, that StepFor is
	// meant to be used with: about 21 dB of signal to noise for white noise, more
	// for anything else.
	DefaultRatio = 0.32

	// MaxStep bounds the step. No coefficient of 16-bit PCM is larger.
	MaxStep = 1 << 22

	// finestStep is the smallest step that StepFor returns. Its error is so small
	// that rounding to 16 bits removes nearly all of it.
	finestStep = 0.25

	// maxLevel bounds the magnitude of a quantised coefficient.
	maxLevel = 1<<maxClass - 1

	// rounding is added to a magnitude before its fraction is dropped.
	// Magnitudes are rarer the larger they are, so rounding a little more of them
	// down than up saves more bits than it adds noise.
	rounding = 0.45
)

func checkStep(step float32) error {
	if !(step >= 0 && step <= MaxStep) {
		return fmt.Errorf("%w: %v, must be from 0 to %d", ErrStep, step, MaxStep)
	}
	return nil
}

// StepFor returns the step that is the given fraction of the level of the
// coefficients: of their root mean square. The ratio of signal to noise, in dB,
// is then about 10.8 - 20 log10(ratio) or better, at every level. Silence gets
// a small step that is not 0. A ratio of 0 gives 0, which is lossless; a negative
// one gives a step that EncodeChunk refuses.
func StepFor(coeffs []float32, ratio float64) float32 {
	if ratio <= 0 {
		return float32(ratio)
	}
	energy := 0.0
	for _, v := range coeffs {
		energy += float64(v) * float64(v)
	}
	level := math.Sqrt(energy / float64(max(1, len(coeffs))))
	return float32(min(max(finestStep, ratio*level), MaxStep))
}

// Quantise divides each coefficient by the step, rounds it and puts it into dst,
// which must be as long as src. An error wraps ErrStep if the step is not
// positive, and ErrRange if a coefficient is not finite or is too large for the
// step; the contents of dst are then undefined.
func Quantise(dst []int32, src []float32, step float32) error {
	if err := checkStep(step); err != nil || step == 0 {
		return fmt.Errorf("%w: cannot divide by %v", ErrStep, step)
	}
	scale := 1 / float64(step)
	dst = dst[:len(src)]
	for k, v := range src {
		// Rounded before the sum, so that no machine fuses the two.
		magnitude := float64(math.Abs(float64(v))*scale) + rounding
		if !(magnitude < maxLevel+1) { // in this form it rejects NaN as well
			return fmt.Errorf("%w: coefficient %d is %v with step %v", ErrRange, k, v, step)
		}
		level := int32(magnitude)
		if v < 0 {
			level = -level
		}
		dst[k] = level
	}
	return nil
}

// Dequantise puts each level times the step into dst, which must be as long as
// src.
func Dequantise(dst []float32, src []int32, step float32) {
	dst = dst[:len(src)]
	for k, level := range src {
		dst[k] = float32(level) * step
	}
}

func checkFinite(coeffs []float32) error {
	for k, v := range coeffs {
		if v-v != 0 { // NaN and both infinities
			return fmt.Errorf("%w: coefficient %d is %v", ErrRange, k, v)
		}
	}
	return nil
}
