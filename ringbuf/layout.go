package ringbuf

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// HeaderSize is the length in bytes of the header that stands directly before
// each payload:
//
//	0  8  id    of the chunk, little endian
//	8  8  size  of the payload in bytes, little endian
const HeaderSize = 16

// geometry describes where in the buffer chunks may begin. Spans cover the buffer
// without holes; a span is a live chunk or a gap:
//
//	0      lead                                               end = len(buf)
//	|unused|header|payload......|pad|  gap   |header|payload...|
//	       |<------- span --------->|<-span->|<---- span ----->|
//	              ^ multiple of Align               ^ multiple of Align
//
// Spans begin on a grid that lies HeaderSize before the multiples of Align, so
// that a header fills what would otherwise be padding in front of an aligned
// payload. Every span is a whole number of granules of Align bytes, except
// that the last one ends with the buffer.
type geometry struct {
	lead, end uint64 // spans cover [lead, end)
	align     uint64
	shift     uint // log2 of align
}

// maxSpans is how many records a uint32 can name beside the sentinel.
const maxSpans = math.MaxUint32

// newGeometry expects valid options. It refuses a buffer too small for one
// byte of payload and one whose spans could outnumber the records.
func newGeometry(sizeBytes uint64, opts Options) (geometry, error) {
	g := geometry{
		end:   sizeBytes,
		align: uint64(opts.Align),
		shift: uint(bits.TrailingZeros(uint(opts.Align))),
	}
	g.lead = (g.align - HeaderSize%g.align) % g.align
	if least := g.lead + HeaderSize + 1; sizeBytes < least {
		return geometry{}, fmt.Errorf("the buffer has %d bytes, but one chunk at alignment %d needs %d", sizeBytes, g.align, least)
	}
	// Gaps are never neighbours and a chunk has more bytes than its header, so
	// that two adjacent spans have more than 16 bytes between them even at
	// alignment 1: on average a span has at least 8.
	if most := g.capacity()/max(g.align, HeaderSize/2) + 2; most > maxSpans {
		return geometry{}, fmt.Errorf("the buffer of %d bytes could hold %d chunks and gaps, the most is %d; use a larger Align than %d",
			sizeBytes, most, uint64(maxSpans), g.align)
	}
	return g, nil
}

// capacity is the number of bytes that spans cover.
func (g *geometry) capacity() uint64 { return g.end - g.lead }

// maxPayload is the largest payload an empty ring can hold.
func (g *geometry) maxPayload() uint64 { return g.capacity() - HeaderSize }

// roundUp returns n rounded up to whole granules.
func (g *geometry) roundUp(n uint64) uint64 { return (n + g.align - 1) &^ (g.align - 1) }

// granules returns how many granules n bytes touch.
func (g *geometry) granules(n uint64) uint64 { return (n + g.align - 1) >> g.shift }

// spanFor returns how many bytes a chunk takes from a gap of at least need
// bytes. Only a gap at the end of the buffer can be too short for the
// padding, and there is nothing behind it to keep aligned.
func (g *geometry) spanFor(need, gap uint64) uint64 { return min(g.roundUp(need), gap) }

// addr returns the offset of a chunk's payload.
func (g *geometry) addr(c *record) uint64 { return c.off + HeaderSize }

// chunk returns the Chunk of a record of a live chunk.
func (g *geometry) chunk(c *record) Chunk {
	return Chunk{ID: c.id, Addr: g.addr(c), Size: c.size, Tag: c.tag}
}

func putHeader(b []byte, id, size uint64) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint64(b[0:], id)
	binary.LittleEndian.PutUint64(b[8:], size)
}

func getHeader(b []byte) (id, size uint64) {
	_ = b[HeaderSize-1]
	return binary.LittleEndian.Uint64(b[0:]), binary.LittleEndian.Uint64(b[8:])
}
