package codec

import (
	"errors"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

// Bounds on a msgpack payload.
const (
	// MaxMsgpackDepth is how deep arrays and maps may be nested: 64.
	MaxMsgpackDepth = pack.MaxDepth
	// MaxMsgpackValues is how many values a payload may have, 2^22: all
	// elements, keys and values of maps, and the containers themselves.
	// Decoding into an any takes some hundred bytes of memory for each, at
	// worst.
	MaxMsgpackValues = pack.MaxValues
)

// extent is a range of bytes in a payload.
type extent struct{ start, end int }

// internedStringType is the extension type of the library's interned
// strings, whose meaning depends on strings that were decoded before.
const internedStringType = -0x80

// scanMsgpack checks that src is exactly one msgpack value, within the
// limits, in which every declared length is backed by bytes, and text is UTF-8,
// because a consumer in Python accepts nothing else. It does not
// recurse, and allocates only to append the extents of extension data to
// extensions, in order. The returned key is the first one that is nil or bytes, if there is any.
//
// Without this scan the library allocates a declared length before it has read
// a byte of it, 64 GiB for an array of five bytes, and recurses without a
// bound, until the runtime kills the process.
func scanMsgpack(src []byte, extensions []extent) (_ []extent, key pack.Token, _ error) {
	r := pack.NewReader(src)
	for !r.Done() {
		t, err := r.Next()
		if err != nil {
			return extensions, key, payloadError(err)
		}
		if t.Key && !key.Key && (t.Kind == pack.Nil || t.Kind == pack.Bin) {
			key = t
		}
		if t.Kind == pack.Str && !utf8.Valid(t.Data) {
			return extensions, key, &PayloadError{
				Serializer: msgpackName, Offset: t.Offset, Err: ErrMalformed, Reason: "text that is not UTF-8; send it as []byte",
			}
		}
		if t.Kind != pack.Ext {
			continue
		}
		if t.Type == internedStringType {
			return extensions, key, &PayloadError{
				Serializer: msgpackName, Offset: t.Offset, Err: ErrMalformed,
				Reason: "interned strings are not supported; remove the intern option from the field tag",
			}
		}
		if n := len(t.Data); n > 0 {
			extensions = append(extensions, extent{r.Pos() - n, r.Pos()})
		}
	}
	if err := r.End(); err != nil {
		return extensions, key, payloadError(err)
	}
	return extensions, key, nil
}

// payloadError turns an error of package pack into one of this package.
func payloadError(err error) error {
	var bad *pack.Error
	if !errors.As(err, &bad) {
		return err
	}
	kind := ErrMalformed
	if bad.Limit {
		kind = ErrLimit
	}
	return &PayloadError{Serializer: msgpackName, Offset: bad.Offset, Reason: bad.Reason, Err: kind}
}
