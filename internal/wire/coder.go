package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// coder walks over the fields of one message in the order of the wire, and
// either writes or reads them. After the first failure it reads nothing more.
// Writing never changes the message: several goroutines may send the same one.
type coder struct {
	reading bool
	kind    Kind
	buf     []byte // writing: the packet so far; reading: what is left of the message
	err     error
}

// begin says which message the fields belong to. It comes first.
func (c *coder) begin(k Kind) { c.kind = k }

// fail keeps the first error. Bytes that are wrong are the peer's fault, values
// that are wrong the caller's.
func (c *coder) fail(field, format string, args ...any) {
	if c.err != nil {
		return
	}
	code := CodeInvalid
	if c.reading {
		code = CodeProtocol
	}
	c.err = &Error{Code: code, Text: fmt.Sprintf("%v.%s: ", c.kind, field) + fmt.Sprintf(format, args...)}
}

// take returns the next n bytes of the message, or nil when they are missing.
func (c *coder) take(field string, n int) []byte {
	if c.err != nil {
		return nil
	}
	if n > len(c.buf) {
		c.fail(field, "cut short: %d bytes are left and %d are needed", len(c.buf), n)
		return nil
	}
	b := c.buf[:n:n]
	c.buf = c.buf[n:]
	return b
}

func (c *coder) u8(field string, p *uint8) {
	if !c.reading {
		c.buf = append(c.buf, *p)
	} else if b := c.take(field, 1); b != nil {
		*p = b[0]
	}
}

func (c *coder) u16(field string, p *uint16) {
	if !c.reading {
		c.buf = binary.LittleEndian.AppendUint16(c.buf, *p)
	} else if b := c.take(field, 2); b != nil {
		*p = binary.LittleEndian.Uint16(b)
	}
}

func (c *coder) u32(field string, p *uint32) {
	if !c.reading {
		c.buf = binary.LittleEndian.AppendUint32(c.buf, *p)
	} else if b := c.take(field, 4); b != nil {
		*p = binary.LittleEndian.Uint32(b)
	}
}

func (c *coder) u64(field string, p *uint64) {
	if !c.reading {
		c.buf = binary.LittleEndian.AppendUint64(c.buf, *p)
	} else if b := c.take(field, 8); b != nil {
		*p = binary.LittleEndian.Uint64(b)
	}
}

func (c *coder) i64(field string, p *int64) {
	bits := uint64(*p)
	c.u64(field, &bits)
	if c.reading {
		*p = int64(bits)
	}
}

// bool is a u8 that is 0 or 1.
func (c *coder) bool(field string, p *bool) {
	var value uint8
	if *p {
		value = 1
	}
	c.enum(field, &value, 0, 1)
	if c.reading {
		*p = value == 1
	}
}

// enum is a u8 from least to most.
func (c *coder) enum(field string, p *uint8, least, most uint8) {
	value := *p
	c.u8(field, &value)
	if c.err == nil && (value < least || value > most) {
		c.fail(field, "%d, and only %d to %d mean something", value, least, most)
	}
	if c.reading {
		*p = value
	}
}

func (c *coder) code(p *Code) { c.u16("code", (*uint16)(p)) }

// zeros are n bytes that mean nothing yet.
func (c *coder) zeros(n int) {
	if c.reading {
		c.take("reserved", n)
		return
	}
	for range n {
		c.buf = append(c.buf, 0)
	}
}

// fixed is as many bytes as p has.
func (c *coder) fixed(field string, p []byte) {
	if !c.reading {
		c.buf = append(c.buf, p...)
		return
	}
	copy(p, c.take(field, len(p)))
}

// str is text of at most maxBytes. Text that is already in *p is kept when the
// message says the same, so that a message that is used again does not allocate
// for a key that repeats.
func (c *coder) str(field string, p *string, maxBytes int) {
	if c.reading {
		if b := c.readText(field, maxBytes); *p != string(b) {
			*p = string(b)
		}
		return
	}
	switch {
	case len(*p) > maxBytes:
		c.fail(field, "text of %d bytes, and at most %d are allowed", len(*p), maxBytes)
	case !utf8.ValidString(*p):
		c.fail(field, "text that is not UTF-8")
	default:
		c.buf = binary.LittleEndian.AppendUint16(c.buf, uint16(len(*p)))
		c.buf = append(c.buf, *p...)
	}
}

// text is the text of an error: one that is too long is cut, and one that is
// not UTF-8 is mended, because failing to report a failure helps nobody.
func (c *coder) text(p *string) {
	if c.reading {
		c.str("text", p, MaxText)
		return
	}
	clipped := clip(*p)
	c.str("text", &clipped, MaxText)
}

// clip returns the part of text that fits into an error text, up to the last
// whole rune.
func clip(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), 2*MaxText)], "\uFFFD")
	if len(text) <= MaxText {
		return text
	}
	end := MaxText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// readText returns the bytes of a str, which are those of the packet.
func (c *coder) readText(field string, maxBytes int) []byte {
	var n uint16
	c.u16(field, &n)
	if int(n) > maxBytes {
		c.fail(field, "text of %d bytes, and at most %d are allowed", n, maxBytes)
	}
	b := c.take(field, int(n))
	if !utf8.Valid(b) {
		c.fail(field, "text that is not UTF-8")
		return nil
	}
	return b
}

// bytes is at most maxBytes bytes. Those that are read are the packet's.
func (c *coder) bytes(field string, p *[]byte, maxBytes int) {
	n := uint32(min(len(*p), 1<<32-1))
	if c.reading {
		c.u32(field, &n)
	}
	if int64(n) > int64(maxBytes) {
		c.fail(field, "%d bytes, and at most %d are allowed", n, maxBytes)
		return
	}
	if !c.reading {
		c.u32(field, &n)
		c.buf = append(c.buf, *p...)
		return
	}
	*p = c.take(field, int(n))
	if n == 0 {
		*p = nil
	}
}

// count is the length of a list, of which each element has at least elementBytes.
func (c *coder) count(field string, n, elementBytes int) int {
	if n > 1<<16-1 {
		c.fail(field, "%d of them, and a count goes up to 65535", n)
		return 0
	}
	count := uint16(n)
	c.u16(field, &count)
	if c.reading && int(count)*elementBytes > len(c.buf) {
		c.fail(field, "cut short: %d of them need at least %d bytes, and %d are left", count, int(count)*elementBytes, len(c.buf))
		return 0
	}
	return int(count)
}

// numbers is a list of u32. A slice that is read into is used again.
func (c *coder) numbers(field string, p *[]uint32) {
	n := c.count(field, len(*p), 4)
	if c.reading {
		*p = slices.Grow((*p)[:0], n)[:n]
	}
	for i := range *p {
		c.u32(field, &(*p)[i])
	}
}

// attrs are text by name, written in the order of the names so that one message
// has one form.
func (c *coder) attrs(p *map[string]string) {
	if len(*p) > MaxAttrs && !c.reading {
		c.fail("attrs", "%d of them, and at most %d are allowed", len(*p), MaxAttrs)
		return
	}
	if c.reading {
		c.readAttrs(p)
		return
	}
	var array [MaxAttrs]string
	names := array[:0]
	for name := range *p {
		names = append(names, name)
	}
	slices.Sort(names)
	c.count("attrs", len(names), 0)
	for _, name := range names {
		if name == "" {
			c.fail("attrs", "an attribute without a name")
		}
		value := (*p)[name]
		c.str("attrs", &name, MaxAttrName)
		c.str("attrs", &value, MaxAttrValue)
	}
}

func (c *coder) readAttrs(p *map[string]string) {
	const pairBytes = 4
	*p = nil
	n := c.count("attrs", 0, pairBytes)
	if n > MaxAttrs {
		c.fail("attrs", "%d of them, and at most %d are allowed", n, MaxAttrs)
	}
	if n == 0 || c.err != nil {
		return
	}
	attrs := make(map[string]string, n)
	for range n {
		var name, value string
		c.str("attrs", &name, MaxAttrName)
		c.str("attrs", &value, MaxAttrValue)
		if c.err != nil {
			return
		}
		if _, twice := attrs[name]; twice || name == "" {
			c.fail("attrs", "an attribute without a name, or two with one name")
			return
		}
		attrs[name] = value
	}
	*p = attrs
}
