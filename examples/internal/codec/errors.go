package codec

import "errors"

var (
	// ErrCorrupt says that bytes are not a chunk as EncodeChunk writes it: cut
	// short, too long, changed, or something else altogether.
	ErrCorrupt = errors.New("codec: corrupt chunk")

	// ErrVersion says that a chunk was written in a format this package does not
	// read. Reader and writer have to be of the same release.
	ErrVersion = errors.New("codec: unknown chunk version")

	// ErrShape says that a Shape is beyond the limits, or does not agree with the
	// stream or with the coefficients it came with.
	ErrShape = errors.New("codec: invalid shape")

	// ErrStep says that a quantiser step is negative, not finite or over MaxStep.
	ErrStep = errors.New("codec: invalid step")

	// ErrRange says that a coefficient is not finite, or too large for its step.
	ErrRange = errors.New("codec: coefficient out of range")

	// ErrShort reports a destination that is too short.
	ErrShort = errors.New("codec: destination too short")
)
