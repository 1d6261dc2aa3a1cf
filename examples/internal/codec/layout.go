package codec

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
)

// A chunk is a header and a payload, without padding; numbers are little-endian.
//
//	offset size
//	     0    4  magic "OMDC"
//	     4    1  version
//	     5    1  kind of the payload
//	     6    1  channels
//	     7    1  frames
//	     8    2  hop
//	    10    2  zero
//	    12    4  samples
//	    16    4  rate
//	    20    4  step, float32; 0 if and only if the payload is raw
//	    24    4  size of the payload in bytes
//	    28    4  CRC-32C of everything else: bytes 0 to 27 and the payload
//	    32       payload
const (
	headerBytes = 32
	magic       = "OMDC"
	version     = 1

	kindAt     = 5
	hopAt      = 8
	zeroAt     = 10
	samplesAt  = 12
	rateAt     = 16
	stepAt     = 20
	payloadAt  = 24
	checksumAt = 28
)

// kind is the kind of the payload.
type kind uint8

const (
	kindRaw      kind = iota // float32 coefficients as they are
	kindCoded                // range coded, channel by channel
	kindRotated              // range coded, two channels as sum and difference
	kindsDefined             // number of kinds
)

// header is what a chunk's header says.
type header struct {
	shape Shape
	kind  kind
	step  float32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum returns the CRC of a chunk, which has a whole header.
func checksum(chunk []byte) uint32 {
	sum := crc32.Checksum(chunk[:checksumAt], castagnoli)
	return crc32.Update(sum, castagnoli, chunk[headerBytes:])
}

// seal fills in the header of a chunk whose payload is in place.
func (h header) seal(chunk []byte) {
	copy(chunk, magic)
	chunk[4] = version
	chunk[kindAt] = byte(h.kind)
	chunk[6] = byte(h.shape.Channels)
	chunk[7] = byte(h.shape.Frames)
	le := binary.LittleEndian
	le.PutUint16(chunk[hopAt:], uint16(h.shape.Hop))
	le.PutUint16(chunk[zeroAt:], 0)
	le.PutUint32(chunk[samplesAt:], uint32(h.shape.Samples))
	le.PutUint32(chunk[rateAt:], uint32(h.shape.Rate))
	le.PutUint32(chunk[stepAt:], math.Float32bits(h.step))
	le.PutUint32(chunk[payloadAt:], uint32(len(chunk)-headerBytes))
	le.PutUint32(chunk[checksumAt:], checksum(chunk))
}

// parseHeader reads and checks the header of a chunk, and that the chunk has the
// size it gives. It does not look at the payload.
func parseHeader(chunk []byte) (header, error) {
	if len(chunk) < headerBytes {
		return header{}, fmt.Errorf("%w: %d bytes, the header alone has %d", ErrCorrupt, len(chunk), headerBytes)
	}
	if string(chunk[:len(magic)]) != magic {
		return header{}, fmt.Errorf("%w: it begins with %q, must be %q", ErrCorrupt, chunk[:len(magic)], magic)
	}
	if chunk[4] != version {
		return header{}, fmt.Errorf("%w: %d, this is version %d", ErrVersion, chunk[4], version)
	}
	le := binary.LittleEndian
	h := header{
		kind: kind(chunk[kindAt]),
		step: math.Float32frombits(le.Uint32(chunk[stepAt:])),
		shape: Shape{
			Rate:     boundedInt(le.Uint32(chunk[rateAt:])),
			Channels: int(chunk[6]),
			Frames:   int(chunk[7]),
			Hop:      int(le.Uint16(chunk[hopAt:])),
			Samples:  boundedInt(le.Uint32(chunk[samplesAt:])),
		},
	}
	if payload, has := le.Uint32(chunk[payloadAt:]), len(chunk)-headerBytes; uint64(payload) != uint64(has) {
		return header{}, fmt.Errorf("%w: its payload has %d bytes, the header says %d", ErrCorrupt, has, payload)
	}
	if z := le.Uint16(chunk[zeroAt:]); z != 0 {
		return header{}, fmt.Errorf("%w: %#04x at byte %d, must be zero", ErrCorrupt, z, zeroAt)
	}
	return h, h.validate()
}

// validate checks what the fields must have in common.
func (h header) validate() error {
	if err := h.shape.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err := checkStep(h.step); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if h.kind >= kindsDefined {
		return fmt.Errorf("%w: kind %d is not defined", ErrCorrupt, h.kind)
	}
	if raw := h.kind == kindRaw; raw != (h.step == 0) {
		return fmt.Errorf("%w: kind %d with step %v", ErrCorrupt, h.kind, h.step)
	}
	if h.kind == kindRotated && h.shape.Channels != 2 {
		return fmt.Errorf("%w: sum and difference of %d channel", ErrCorrupt, h.shape.Channels)
	}
	return nil
}

// boundedInt converts a field to int on every platform: a value over the limit
// of a field stays over it.
func boundedInt(v uint32) int { return int(min(v, math.MaxInt32)) }
