package codec

// ID names a serializer in a handle. IDs are part of the wire format: they
// never change meaning.
type ID uint32

// The IDs of the built-in serializers. Zero is never a serializer.
const (
	IDRaw     ID = 1
	IDMsgpack ID = 2
	IDTensor  ID = 3
)

// The IDs of the serializers in packages below this one. A registry holds
// them once the program registers them, under the names "omni", "kv", "proto"
// and "bundle".
const (
	IDOmni   ID = 4
	IDKV     ID = 5 // reserved: frames of vLLM-Omni's KV caches, which no package here encodes
	IDProto  ID = 6
	IDBundle ID = 7
)

// FirstUserID is the first ID free for the serializers of programs.
const FirstUserID ID = 256

// Serializer encodes values into payloads and decodes them. Implementations
// are safe for concurrent use.
type Serializer interface {
	// Name is the serializer's name in configurations and errors, such as
	// "msgpack". It is not empty and never changes.
	Name() string

	// ID is the serializer's number in handles. It never changes.
	ID() ID

	// Append encodes v and appends the result to dst. With enough capacity
	// in dst nothing is allocated for the result: a caller can pass reserved
	// memory with length zero, and see from the address of the result whether
	// the value fitted. After an error the bytes behind dst are unspecified.
	Append(dst []byte, v any) ([]byte, error)

	// Decode decodes the payload src into v, a non-nil pointer. Each
	// serializer documents whether the result may alias src; it never writes
	// to src. After an error *v is unspecified.
	Decode(src []byte, v any) error
}

// Sizer is a [Serializer] that can tell the encoded size of a value before it
// encodes it. The caller then reserves exactly that much and the value is
// encoded in place.
type Sizer interface {
	Serializer

	// Size returns the encoded size of v in bytes. It reports false if the
	// size cannot be told up front; Append then encodes v, or says why it
	// cannot.
	Size(v any) (sizeBytes int, ok bool)

	// EncodeInto fills dst with the encoding of v. The length of dst is
	// what Size returned for v; any other is a *SizeError.
	EncodeInto(dst []byte, v any) error
}

// Decode decodes the payload src into a new T. Unlike a variable used twice,
// the target holds nothing that a serializer might reuse and overwrite.
func Decode[T any](s Serializer, src []byte) (T, error) {
	var v, zero T
	if err := s.Decode(src, &v); err != nil {
		return zero, err
	}
	return v, nil
}
