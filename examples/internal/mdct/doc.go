// Package mdct is a streaming modified discrete cosine transform with perfect
// reconstruction: an Analyzer turns the samples of one channel into frames of
// coefficients, a Synthesizer turns the frames back into the samples.
//
// # Shape
//
// With a hop of N samples, every frame covers a block of 2N samples, half of
// which it shares with the frame before and half with the frame after, and
// holds N coefficients:
//
//	samples      | 0 .. N-1 | N .. 2N-1 | 2N .. 3N-1 | ...
//	frame 0   zeros + block 0
//	frame 1            block 0 + block 1
//	frame 2                       block 1 + block 2
//
// Frame 0 sees N zeros before the stream; the last frame sees N zeros, and the
// zeros that fill up the last block, after it. L samples therefore give
// ceil(L/N)+1 frames, or none for L = 0 (FrameCount). The Synthesizer is one
// frame behind: the first frame completes no sample, every later one completes
// N. The caller remembers how many samples of the last block are real, and cuts
// off the rest.
//
// # Scaling and precision
//
// The window is the sine window and the transform is orthonormal: a sequence of
// frames has the energy of its samples, and an error made in the coefficients
// comes back as an error of the same energy in the samples. Everything is
// computed in float64; only the coefficients are float32, which is where 16-bit
// samples could lose exactness. They do not. Rounding to float32 is off by at
// most 2^-24 of each coefficient. A sample depends on two frames through
// weights of unit norm, and these two frames have at most the energy of the 3N
// samples under them, so for samples of magnitude 2^15 or less the error of a
// sample is at most
//
//	2^-24 * 2^15 * sqrt(3N) = sqrt(3N) / 512
//
// which is 0.08 for N = 512 and 0.22 for MaxHop: always below the 0.5 that
// would make rounding choose a different integer. (The error of the float64
// arithmetic, nine decimal digits further down, does not change that.)
//
// The fast path folds each block into N values, whose DCT-IV is computed by one
// complex FFT of N/2 points: O(N log N) for a frame.
//
// # Trust and concurrency
//
// Coefficients are used as they are: values that are not finite come out as
// samples that are not finite. Lengths are the caller's duty and a wrong one
// panics. An Analyzer or a Synthesizer belongs to one goroutine at a time, holds
// no resource and need not be closed. After construction nothing allocates.
package mdct
