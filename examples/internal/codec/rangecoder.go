package codec

import "math"

// The entropy coder is a binary range coder with carry propagation, of the kind
// that LZMA made known: a range of 32 bits, widened by bytes. Each decision is
// coded with the probability that an adaptive bit predicts for it.
const (
	probBits  = 15      // a probability is a fraction of 1<<probBits
	minWidth  = 1 << 24 // a narrower range is widened by a byte
	codeBytes = 4       // of the decoder's code, which is as wide as the range
)

// A bit predicts one kind of binary decision: the mean of a quick and a slow
// estimate of the probability of a 0.
type bit struct{ quick, slow uint16 }

const (
	quickShift = 4
	slowShift  = 6
)

// even is a bit without any decisions so far.
var even = bit{1 << (probBits - 1), 1 << (probBits - 1)}

// zero returns the probability of a 0. It never reaches 0 or 1, since an
// estimate moves by a fraction of its distance that is rounded down.
func (b *bit) zero() uint32 { return (uint32(b.quick) + uint32(b.slow)) / 2 }

func (b *bit) update(one bool) {
	if one {
		b.quick -= b.quick >> quickShift
		b.slow -= b.slow >> slowShift
		return
	}
	b.quick += (1<<probBits - b.quick) >> quickShift
	b.slow += (1<<probBits - b.slow) >> slowShift
}

// A rangeEncoder appends to out, up to a limit.
type rangeEncoder struct {
	out   []byte
	limit int    // of len(out)
	full  bool   // bytes were lost to the limit
	low   uint64 // of the range: 32 bits and a carry
	width uint32
	cache byte // the last byte of low to leave it: a carry may still reach it
	held  int  // bytes not yet written: cache, and 0xFF after it; 0 at the start
}

func newRangeEncoder(out []byte, limit int) *rangeEncoder {
	// The cache begins with a byte of 0 that no carry reaches, since low begins at
	// 0 and stays below the range it began with. It leads the output.
	return &rangeEncoder{out: out, limit: limit, width: 1<<32 - 1, held: 1}
}

func (e *rangeEncoder) encode(b *bit, one bool) {
	bound := e.width >> probBits * b.zero()
	if one {
		e.low += uint64(bound)
		e.width -= bound
	} else {
		e.width = bound
	}
	b.update(one)
	e.widen()
}

// encodeEven codes the low n bits of v, the highest first, as they are.
func (e *rangeEncoder) encodeEven(v uint32, n int) {
	for i := n - 1; i >= 0; i-- {
		e.width >>= 1
		if v>>i&1 == 1 {
			e.low += uint64(e.width)
		}
		e.widen()
	}
}

func (e *rangeEncoder) widen() {
	for e.width < minWidth {
		e.width <<= 8
		e.shift()
	}
}

// shift moves the top byte of low into cache, and the bytes held back to the
// output, unless a later carry could still run through it.
func (e *rangeEncoder) shift() {
	carry := byte(e.low >> 32)
	if e.low&math.MaxUint32 < 0xFF<<24 || carry == 1 {
		e.write(e.cache + carry)
		for ; e.held > 1; e.held-- {
			e.write(0xFF + carry)
		}
		e.held = 0
		e.cache = byte(e.low >> 24)
	}
	e.held++
	e.low = e.low << 8 & (1<<32 - 1)
}

func (e *rangeEncoder) write(b byte) {
	if len(e.out) >= e.limit {
		e.full = true
		return
	}
	e.out = append(e.out, b)
}

// finish writes the rest of low and returns the output, and whether all of
// it was within the limit.
func (e *rangeEncoder) finish() (out []byte, ok bool) {
	for range codeBytes + 1 { // one more, for the bytes held back
		e.shift()
	}
	return e.out, !e.full
}

// A rangeDecoder reads from in; past its end it reads zeros and sets short.
type rangeDecoder struct {
	in    []byte
	lead  uint32 // the first byte, which the encoder makes 0
	short bool   // zeros were read past the end
	code  uint32
	width uint32
}

func newRangeDecoder(in []byte) *rangeDecoder {
	d := &rangeDecoder{in: in, width: 1<<32 - 1}
	d.read()
	d.lead = d.code
	for range codeBytes {
		d.read()
	}
	return d
}

func (d *rangeDecoder) decode(b *bit) (one bool) {
	bound := d.width >> probBits * b.zero()
	if one = d.code >= bound; one {
		d.code -= bound
		d.width -= bound
	} else {
		d.width = bound
	}
	b.update(one)
	d.widen()
	return one
}

// decodeEven returns n bits that encodeEven coded.
func (d *rangeDecoder) decodeEven(n int) (v uint32) {
	for range n {
		d.width >>= 1
		v <<= 1
		if d.code >= d.width {
			d.code -= d.width
			v |= 1
		}
		d.widen()
	}
	return v
}

func (d *rangeDecoder) widen() {
	for d.width < minWidth {
		d.width <<= 8
		d.read()
	}
}

func (d *rangeDecoder) read() {
	d.code <<= 8
	if len(d.in) == 0 {
		d.short = true
		return
	}
	d.code |= uint32(d.in[0])
	d.in = d.in[1:]
}

// ended reports whether the input was as the encoder makes it: all of it read,
// nothing missing, the lead 0, and the code at the bottom of the range.
func (d *rangeDecoder) ended() bool {
	return !d.short && len(d.in) == 0 && d.lead == 0 && d.code == 0
}
