package wire

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The generated code calls the functions of this file for fields of variable length, and for
// errors. Each takes the kind and the field for its errors. Functions that append return the
// longer slice. Functions that read return the bytes after the field, and check every length
// against the remaining bytes before they allocate for it.

// fieldError is the error for a field. The code says whose fault it is: CodeProtocol for bytes of
// the peer, CodeInvalid for values of the caller.
func fieldError(code Code, k Kind, field, format string, args ...any) error {
	return &Error{Code: code, Text: fmt.Sprintf("%v.%s: ", k, field) + fmt.Sprintf(format, args...)}
}

func tooShort(k Kind, field string, left, needed int) error {
	return fieldError(CodeProtocol, k, field, "cut short: %d bytes are left and %d are needed", left, needed)
}

// sized is a field of fixed size.
type sized struct {
	field string
	bytes int
}

// cutShort is the error for bytes that end before these fields do.
func cutShort(b []byte, k Kind, fields ...sized) error {
	left := len(b)
	for _, f := range fields {
		if left < f.bytes {
			return tooShort(k, f.field, left, f.bytes)
		}
		left -= f.bytes
	}
	return nil // the caller has counted
}

// outside is the error for an enumerated value.
func outside(code Code, k Kind, field string, value, least, most uint8) error {
	return fieldError(code, k, field, "%d, and only %d to %d mean something", value, least, most)
}

func badMagic(value uint64) error {
	return fieldError(CodeProtocol, KindHello, "magic", "%#016x, and a client says %#016x; this is no client of a bus", value, Magic)
}

func tooLong(code Code, k Kind, field string, n, most int) error {
	return fieldError(code, k, field, "text of %d bytes, and at most %d are allowed", n, most)
}

func notUTF8(code Code, k Kind, field string) error {
	return fieldError(code, k, field, "text that is not UTF-8")
}

// appendStr writes text of at most most bytes.
func appendStr(b []byte, k Kind, field, s string, most int) ([]byte, error) {
	switch {
	case len(s) > most:
		return b, tooLong(CodeInvalid, k, field, len(s), most)
	case !utf8.ValidString(s):
		return b, notUTF8(CodeInvalid, k, field)
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...), nil
}

// appendText writes the text of an error. It cuts a text that is too long and repairs one that is
// not UTF-8, so that a failure is always reported.
func appendText(b []byte, s string) []byte {
	if len(s) > MaxText || !utf8.ValidString(s) {
		s = clip(s)
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
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

// readStr reads text into p. It keeps an equal text that is already there, so that a reused
// message does not allocate for a repeated key.
func readStr(b []byte, k Kind, field string, p *string, most int) ([]byte, error) {
	if len(b) < 2 {
		return b, tooShort(k, field, len(b), 2)
	}
	n := int(binary.LittleEndian.Uint16(b))
	b = b[2:]
	if n > most || n > len(b) {
		return b, strError(k, field, n, most, len(b))
	}
	s := b[:n]
	if !utf8.Valid(s) {
		return b, notUTF8(CodeProtocol, k, field)
	}
	if *p != string(s) {
		*p = string(s)
	}
	return b[n:], nil
}

func strError(k Kind, field string, n, most, left int) error {
	if n > most {
		return tooLong(CodeProtocol, k, field, n, most)
	}
	return tooShort(k, field, left, n)
}

// appendBytes writes at most most bytes.
func appendBytes(b []byte, k Kind, field string, p []byte, most int) ([]byte, error) {
	if len(p) > most {
		return b, fieldError(CodeInvalid, k, field, "%d bytes, and at most %d are allowed", len(p), most)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(p)))
	return append(b, p...), nil
}

// readBytes sets p to bytes of the packet, without a copy.
func readBytes(b []byte, k Kind, field string, p *[]byte, most int) ([]byte, error) { //nolint:unparam // a message may go on behind them
	if len(b) < 4 {
		return b, tooShort(k, field, len(b), 4)
	}
	n := binary.LittleEndian.Uint32(b)
	b = b[4:]
	switch {
	case int64(n) > int64(most):
		return b, fieldError(CodeProtocol, k, field, "%d bytes, and at most %d are allowed", n, most)
	case int(n) > len(b):
		return b, tooShort(k, field, len(b), int(n))
	case n == 0:
		*p = nil
	default:
		*p = b[:n:n]
	}
	return b[n:], nil
}

// checkInline checks that the payload in a message agrees with the flags and the size.
func checkInline(code Code, k Kind, flags uint8, size uint64, payload []byte) error {
	switch {
	case flags&FlagInline == 0 && len(payload) > 0:
		return fieldError(code, k, "payload", "%d bytes, without the flag that says so", len(payload))
	case flags&FlagInline != 0 && size != uint64(len(payload)):
		return fieldError(code, k, "payload", "%d bytes, and the size says %d", len(payload), size)
	}
	return nil
}

// appendCount writes the length of a list.
func appendCount(b []byte, k Kind, field string, n int) ([]byte, error) {
	if n > 1<<16-1 {
		return b, fieldError(CodeInvalid, k, field, "%d of them, and a count goes up to 65535", n)
	}
	return binary.LittleEndian.AppendUint16(b, uint16(n)), nil
}

// readCount reads the length of a list whose elements have at least each bytes.
func readCount(b []byte, k Kind, field string, each int) (n int, rest []byte, err error) {
	if len(b) < 2 {
		return 0, b, tooShort(k, field, len(b), 2)
	}
	n = int(binary.LittleEndian.Uint16(b))
	b = b[2:]
	if n*each > len(b) {
		return 0, b, fieldError(CodeProtocol, k, field, "cut short: %d of them need at least %d bytes, and %d are left", n, n*each, len(b))
	}
	return n, b, nil
}

func appendNumbers(b []byte, k Kind, field string, list []uint32) ([]byte, error) {
	b, err := appendCount(b, k, field, len(list))
	if err != nil {
		return b, err
	}
	for _, v := range list {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b, nil
}

// readNumbers reads into the slice at p if its capacity suffices.
func readNumbers(b []byte, k Kind, field string, p *[]uint32) ([]byte, error) { //nolint:unparam // a message may go on behind them
	n, b, err := readCount(b, k, field, 4)
	if err != nil {
		return b, err
	}
	list := slices.Grow((*p)[:0], n)[:n]
	for i := range list {
		list[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	*p = list
	return b[4*n:], nil
}

// appendAttrs writes the attributes in the order of their names, so that a message has one form.
func appendAttrs(b []byte, k Kind, field string, attrs map[string]string) ([]byte, error) {
	if len(attrs) == 0 {
		return append(b, 0, 0), nil
	}
	if len(attrs) > MaxAttrs {
		return b, tooManyAttrs(CodeInvalid, k, field, len(attrs))
	}
	var array [MaxAttrs]string
	names := array[:0]
	for name := range attrs {
		names = append(names, name)
	}
	slices.Sort(names)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(names)))
	for _, name := range names {
		if name == "" {
			return b, fieldError(CodeInvalid, k, field, "an attribute without a name")
		}
		var err error
		if b, err = appendStr(b, k, field, name, MaxAttrName); err == nil {
			b, err = appendStr(b, k, field, attrs[name], MaxAttrValue)
		}
		if err != nil {
			return b, err
		}
	}
	return b, nil
}

func tooManyAttrs(code Code, k Kind, field string, n int) error {
	return fieldError(code, k, field, "%d of them, and at most %d are allowed", n, MaxAttrs)
}

// readAttrs sets p to a new map, or to nil if there are no attributes.
func readAttrs(b []byte, k Kind, field string, p *map[string]string) ([]byte, error) {
	const pairBytes = 4
	*p = nil
	n, b, err := readCount(b, k, field, pairBytes)
	if err != nil || n == 0 {
		return b, err
	}
	if n > MaxAttrs {
		return b, tooManyAttrs(CodeProtocol, k, field, n)
	}
	attrs := make(map[string]string, n)
	for range n {
		var name, value string
		if b, err = readStr(b, k, field, &name, MaxAttrName); err == nil {
			b, err = readStr(b, k, field, &value, MaxAttrValue)
		}
		if err != nil {
			return b, err
		}
		if _, twice := attrs[name]; twice || name == "" {
			return b, fieldError(CodeProtocol, k, field, "an attribute without a name, or two with one name")
		}
		attrs[name] = value
	}
	*p = attrs
	return b, nil
}
