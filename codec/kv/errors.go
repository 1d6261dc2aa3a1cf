package kv

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
)

// wrong is the error of a field of a frame that cannot be read, or of a part of a [Payload]
// that cannot be written. The field is its place in the frame: "header_len", "header", or a
// path in the header, such as "td[3].o".
func wrong(field string, err error, format string, args ...any) error {
	return fmt.Errorf("codec: %s: %s: %w: %s", name, field, err, fmt.Sprintf(format, args...))
}

func malformed(field, format string, args ...any) error {
	return wrong(field, codec.ErrMalformed, format, args...)
}

func beyondLimit(field, format string, args ...any) error {
	return wrong(field, codec.ErrLimit, format, args...)
}
