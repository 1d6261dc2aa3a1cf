package wav

import "math"

// A stream is a header and chunks. Numbers are little-endian; sizes are those of
// the bytes after them.
//
//	offset size
//	     0    4  "RIFF"
//	     4    4  size of the rest
//	     8    4  "WAVE"
//	    12       chunks
//
// A chunk is padded to an even size, which its size does not count.
//
//	offset size
//	     0    4  name
//	     4    4  size of the body
//	     8       body
//
// The body of the chunk "fmt " comes before that of "data", which is the samples.
//
//	offset size
//	     0    2  format tag: 1 is PCM, 0xFFFE extensible
//	     2    2  channels
//	     4    4  samples a second of each channel
//	     8    4  bytes a second
//	    12    2  bytes of one sample of all channels
//	    14    2  bits of one sample
//	    16    2  size of the extension, here of 22 bytes or more
//	    18    6  valid bits, speakers
//	    24   16  subformat: a format tag and a fixed tail
const (
	riffHeaderBytes  = 12
	chunkHeaderBytes = 8
	fmtBytes         = 16 // of a plain "fmt " body
	fmtExtendedBytes = 40

	tagPCM        = 1
	tagExtensible = 0xFFFE

	sampleBytes = 2
	maxChannels = 2
	maxRate     = math.MaxInt32
)

// guidTail is the part of a subformat behind the format tag.
const guidTail = "\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"

// placeholder is what this package writes for a size not yet known.
const placeholder = math.MaxUint32

// isPlaceholder reports whether a writer left a size open. 0x7FFFF000 is what
// espeak-ng writes into a pipe.
func isPlaceholder(size uint32) bool {
	return size == 0 || size == placeholder || size == 0x7FFFF000
}

// A Format describes interleaved 16-bit PCM.
type Format struct {
	Rate     int // samples a second of each channel, in Hz
	Channels int // 1 or 2
}

// frameBytes returns the size of one sample of all channels.
func (f Format) frameBytes() int { return sampleBytes * f.Channels }
