// Package codec turns chunks of MDCT coefficients into few bytes and back. It is
// the middle of a streaming speech codec: Analysis makes chunks of coefficients
// from PCM, EncodeChunk and DecodeChunk carry one chunk each, Synthesis makes
// PCM from the chunks.
//
// # Chunks
//
// A chunk is up to ChunkFrames frames of every channel, in the order
// [frame][channel][coefficient], float32, so a stream can append frame by frame
// and the first frames of a chunk are a chunk too. Its Shape says how many there
// are and how many PCM samples they complete; over a stream the Samples add up
// to the length of the PCM. A stream has at least one chunk: one without frames,
// if there are no samples.
//
// All functions work on slices that the caller supplies, which may be shared
// memory: the coefficients and the coded bytes need no copy between stages.
//
// # Coding
//
// A coefficient is divided by the step and rounded, slightly towards zero. The
// integers go through an adaptive binary range coder: the bit length of the
// magnitude in unary, its next two bits, then the rest and the sign as they are.
// The probabilities depend on the magnitudes of five neighbours that the decoder
// knows already: the two coefficients below, and three around the same place in
// the frame before. Two channels are coded as sum and difference where that is
// expected to be shorter.
//
// The MDCT is orthonormal, so the step sets the error of the samples directly:
// about step/sqrt(12) in units of one 16-bit level. All coefficients share one
// step, which is what the ratio of signal to noise asks for; there is no
// psychoacoustic model. StepFor makes the step a fraction of the chunk's own
// level, so that quiet and loud recordings fare alike. At DefaultRatio even white
// noise, which nothing can predict, has 20 dB in a quarter of its bytes, and
// speech needs far fewer. (Where the level is below ten of the 16-bit steps, the
// rounding of the samples itself may cost up to 0.7 dB of that.)
//
// With a step of 0 the coefficients are stored as they are, and PCM that went
// through Analysis comes out of Synthesis sample for sample the same (package
// mdct has the proof). A chunk is also stored so if coding would make it larger
// or the step is too fine for its integers, so that MaxEncodedSize is a hard and
// small bound.
//
// # Trust
//
// DecodeChunk and ChunkShape take bytes from outside. They check every field,
// never panic, allocate nothing that depends on the bytes beyond a scratch below
// 256 KiB, and do work bounded by the limits of Shape. A checksum covers the
// whole chunk, and a coded chunk must end exactly with its bytes. If the bytes
// change meanwhile, the result is an error or wrong coefficients.
//
// # Independence
//
// A chunk is decoded on its own: it does not depend on the chunk before, and has
// no number. Chunks may be coded in any order and by many goroutines. The
// transport of chunks has to keep their order and detect a loss; a lost chunk can
// be replaced by zeros of the same Shape and changes no sample that is more than
// a hop away from it.
//
// # Concurrency
//
// The functions are safe for concurrent use, as long as their slices are not changed
// meanwhile. An Analysis, a Synthesis or an SNRMeter belongs to one goroutine at a
// time. The package starts no goroutine.
package codec
