package codec

import (
	"encoding/binary"
	"fmt"
	"math"
)

// ChunkShape returns the shape that the header of a chunk gives, for allocating memory
// before DecodeChunk. It checks the header and the chunk's size, not the
// payload. An error wraps ErrCorrupt or ErrVersion.
func ChunkShape(src []byte) (Shape, error) {
	h, err := parseHeader(src)
	if err != nil {
		return Shape{}, err
	}
	return h.shape, nil
}

// DecodeChunk decodes a chunk, which is all of src, into the front of dst and
// returns its shape. dst must hold Shape.Coefficients values; all values are
// finite.
//
// An error wraps ErrCorrupt or ErrVersion if src is invalid, or ErrShort if dst
// is too short; the contents of dst are then undefined.
func DecodeChunk(dst []float32, src []byte) (Shape, error) {
	h, err := parseHeader(src)
	if err != nil {
		return Shape{}, err
	}
	want := h.shape.Coefficients()
	if len(dst) < want {
		return Shape{}, fmt.Errorf("%w: room for %d coefficients, the chunk has %d", ErrShort, len(dst), want)
	}
	if sum, said := checksum(src), binary.LittleEndian.Uint32(src[checksumAt:]); sum != said {
		return Shape{}, fmt.Errorf("%w: checksum is %08x, the header says %08x", ErrCorrupt, sum, said)
	}
	payload := src[headerBytes:]
	if h.kind == kindRaw {
		err = decodeRaw(dst[:want], payload)
	} else {
		err = h.decodeLevels(dst[:want], payload)
	}
	if err != nil {
		return Shape{}, err
	}
	return h.shape, nil
}

func decodeRaw(dst []float32, payload []byte) error {
	if len(payload) != coefficientBytes*len(dst) {
		return fmt.Errorf("%w: %d bytes for %d raw coefficients, must be %d",
			ErrCorrupt, len(payload), len(dst), coefficientBytes*len(dst))
	}
	for k := range dst {
		dst[k] = math.Float32frombits(binary.LittleEndian.Uint32(payload[coefficientBytes*k:]))
	}
	if err := checkFinite(dst); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// decodeLevels decodes the range-coded levels and makes coefficients of them. It
// stops after the frame in which the payload ends early.
func (h header) decodeLevels(dst []float32, payload []byte) error {
	s := borrow(h.shape)
	defer scratches.Put(s)
	d := newRangeDecoder(payload)
	for f := range h.shape.Frames {
		for channel := range h.shape.Channels {
			s.decodeRow(d, channel)
			Dequantise(h.shape.frame(dst, f, channel), s.levels, h.step)
		}
		if d.short {
			return fmt.Errorf("%w: its %d bytes end in frame %d of %d", ErrCorrupt, len(payload), f, h.shape.Frames)
		}
		if h.kind == kindRotated {
			a, b := h.shape.frame(dst, f, 0), h.shape.frame(dst, f, 1)
			rotate(a, b, a, b)
		}
	}
	if !d.ended() {
		return fmt.Errorf("%w: its %d bytes do not end as its %d frames do", ErrCorrupt, len(payload), h.shape.Frames)
	}
	return nil
}

// decodeRow decodes the levels of one frame of one channel.
func (s *scratch) decodeRow(d *rangeDecoder, channel int) {
	lane := &s.lanes[channel]
	for k := range s.levels {
		level := s.model.decode(d, channel, lane.context(k))
		s.levels[k] = level
		lane.set(k, level)
	}
	lane.advance()
}
