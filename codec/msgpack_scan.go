package codec

import "fmt"

// Bounds on a msgpack payload.
const (
	// MaxMsgpackDepth is how deep arrays and maps may be nested.
	MaxMsgpackDepth = 64
	// MaxMsgpackValues is how many values a payload may have: all elements,
	// keys and values of maps, and the containers themselves. Decoding into an
	// any takes some hundred bytes of memory for each, at worst.
	MaxMsgpackValues = 1 << 22
)

// extent is a range of bytes in a payload.
type extent struct{ start, end int }

// msgpackKind is what follows the first byte of a value.
type msgpackKind uint8

const (
	kindInvalid   msgpackKind = iota // the one code that is never used
	kindScalar                       // bytes
	kindArray                        // values
	kindMap                          // pairs of values
	kindExtension                    // a type byte, then bytes
)

// msgpackHead is the meaning of the first byte of a value.
type msgpackHead struct {
	kind      msgpackKind
	lenBytes  uint8 // width of the count that follows; 0 if it is fixed
	fixedSize uint8 // the count, if it is fixed
}

// msgpackHeads is indexed by the first byte of a value.
var msgpackHeads = func() (heads [256]msgpackHead) {
	set := func(from, to int, kind msgpackKind, lenBytes, fixedSize uint8) {
		for code := from; code <= to; code++ {
			heads[code] = msgpackHead{kind, lenBytes, fixedSize}
		}
	}
	set(0x00, 0x7f, kindScalar, 0, 0) // positive fixint
	for n := range 16 {
		set(0x80+n, 0x80+n, kindMap, 0, uint8(n))   // fixmap
		set(0x90+n, 0x90+n, kindArray, 0, uint8(n)) // fixarray
	}
	for n := range 32 {
		set(0xa0+n, 0xa0+n, kindScalar, 0, uint8(n)) // fixstr
	}
	set(0xc0, 0xc0, kindScalar, 0, 0) // nil
	set(0xc2, 0xc3, kindScalar, 0, 0) // false, true
	set(0xca, 0xca, kindScalar, 0, 4) // float 32
	set(0xcb, 0xcb, kindScalar, 0, 8) // float 64
	for i := range 4 {
		set(0xcc+i, 0xcc+i, kindScalar, 0, 1<<i) // uint 8 to 64
		set(0xd0+i, 0xd0+i, kindScalar, 0, 1<<i) // int 8 to 64
	}
	for i := range 3 {
		set(0xc4+i, 0xc4+i, kindScalar, 1<<i, 0)    // bin 8 to 32
		set(0xc7+i, 0xc7+i, kindExtension, 1<<i, 0) // ext 8 to 32
		set(0xd9+i, 0xd9+i, kindScalar, 1<<i, 0)    // str 8 to 32
	}
	for i := range 5 {
		set(0xd4+i, 0xd4+i, kindExtension, 0, 1<<i) // fixext 1 to 16
	}
	for i := range 2 {
		set(0xdc+i, 0xdc+i, kindArray, 2<<i, 0) // array 16, 32
		set(0xde+i, 0xde+i, kindMap, 2<<i, 0)   // map 16, 32
	}
	set(0xe0, 0xff, kindScalar, 0, 0) // negative fixint
	return heads
}()

// internedStringType is the extension type of the library's interned
// strings, whose meaning depends on what was decoded before.
const internedStringType = 0x80

// scanMsgpack checks that src is exactly one msgpack value, within the
// limits, in which every declared length is backed by bytes. It does not
// recurse, and allocates only to append the extents of extension data to
// extensions, in order.
//
// The library on its own allocates what a length declares before it has seen
// a byte of it, 64 GiB for an array of five bytes, and recurses without a
// bound, until the runtime kills the process.
func scanMsgpack(src []byte, extensions []extent) ([]extent, error) {
	s := msgpackScanner{src: src, extensions: extensions}
	for more := true; more; {
		complete, err := s.value()
		if err != nil {
			return s.extensions, err
		}
		more = !complete || s.closeContainers()
	}
	if s.pos != len(src) {
		return s.extensions, s.fail(s.pos, ErrMalformed, "%d bytes after the value", len(src)-s.pos)
	}
	return s.extensions, nil
}

type msgpackScanner struct {
	src        []byte
	pos        int
	values     int                     // begun so far
	missing    [MaxMsgpackDepth]uint64 // values that each open container still lacks
	depth      int                     // open containers
	extensions []extent
}

// value scans a value, or the head of a container that has values to come,
// which it opens. It reports whether the value is complete.
func (s *msgpackScanner) value() (complete bool, err error) {
	start := s.pos
	if s.values++; s.values > MaxMsgpackValues {
		return false, s.fail(start, ErrLimit, "more than %d values", MaxMsgpackValues)
	}
	kind, count, err := s.head()
	if err != nil {
		return false, err
	}
	switch kind {
	case kindArray:
		return count == 0, s.open(start, count)
	case kindMap:
		return count == 0, s.open(start, 2*count)
	case kindExtension:
		return true, s.extension(start, count)
	case kindScalar:
		return true, s.skip(start, count)
	default:
		return false, s.fail(start, ErrMalformed, "no value begins with %#x", s.src[start])
	}
}

// head reads the first byte of a value and its count.
func (s *msgpackScanner) head() (kind msgpackKind, count uint64, err error) {
	if s.pos == len(s.src) {
		return 0, 0, s.fail(s.pos, ErrMalformed, "a value is missing")
	}
	h := msgpackHeads[s.src[s.pos]]
	s.pos++
	if h.lenBytes == 0 {
		return h.kind, uint64(h.fixedSize), nil
	}
	if len(s.src)-s.pos < int(h.lenBytes) {
		return 0, 0, s.fail(s.pos, ErrMalformed, "ends within a length")
	}
	for _, b := range s.src[s.pos : s.pos+int(h.lenBytes)] {
		count = count<<8 | uint64(b)
	}
	s.pos += int(h.lenBytes)
	return h.kind, count, nil
}

// open begins a container of values. Each takes at least one byte, so a count
// beyond the bytes left is a lie that need not be followed to its end.
func (s *msgpackScanner) open(start int, values uint64) error {
	switch left := uint64(len(s.src) - s.pos); {
	case values > left:
		return s.fail(start, ErrMalformed, "%d values declared, %d bytes left", values, left)
	case values == 0:
		return nil
	case s.depth == MaxMsgpackDepth:
		return s.fail(start, ErrLimit, "nested deeper than %d", MaxMsgpackDepth)
	}
	s.missing[s.depth] = values
	s.depth++
	return nil
}

// closeContainers counts a complete value, and closes the containers that it
// completes. It reports whether one is still open.
func (s *msgpackScanner) closeContainers() bool {
	for s.depth > 0 {
		innermost := &s.missing[s.depth-1]
		if *innermost--; *innermost > 0 {
			return true
		}
		s.depth--
	}
	return false
}

// extension skips the type and the data of an extension.
func (s *msgpackScanner) extension(start int, count uint64) error {
	if s.pos == len(s.src) {
		return s.fail(start, ErrMalformed, "an extension has no type")
	}
	if s.src[s.pos] == internedStringType {
		return s.fail(start, ErrMalformed, "interned strings are not supported; remove the intern option from the field tag")
	}
	s.pos++
	data := s.pos
	if err := s.skip(start, count); err != nil {
		return err
	}
	if count > 0 {
		s.extensions = append(s.extensions, extent{data, s.pos})
	}
	return nil
}

// skip skips bytes that belong to the value at start.
func (s *msgpackScanner) skip(start int, count uint64) error {
	if left := uint64(len(s.src) - s.pos); count > left {
		return s.fail(start, ErrMalformed, "%d bytes declared, %d left", count, left)
	}
	s.pos += int(count)
	return nil
}

func (s *msgpackScanner) fail(offset int, kind error, format string, args ...any) error {
	return &PayloadError{Serializer: msgpackName, Offset: offset, Reason: fmt.Sprintf(format, args...), Err: kind}
}
