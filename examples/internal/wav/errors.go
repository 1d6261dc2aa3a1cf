package wav

import (
	"errors"
	"fmt"
)

// Causes of a FormatError. An error because of an early end also wraps
// io.ErrUnexpectedEOF.
var (
	ErrEmpty        = errors.New("no bytes at all")
	ErrNotWAVE      = errors.New("not a RIFF/WAVE stream")
	ErrHeader       = errors.New("malformed header")
	ErrNotPCM16     = errors.New("not 16-bit PCM")
	ErrChannels     = errors.New("unsupported number of channels")
	ErrRate         = errors.New("unsupported sample rate")
	ErrTruncated    = errors.New("truncated")
	ErrPartialFrame = errors.New("incomplete sample at the end")
)

// A FormatError reports why a stream cannot be read, or not beyond the offset.
type FormatError struct {
	Offset int64  // of the first byte that is wrong or missing
	Detail string // the bytes that were found
	Err    error  // one of the causes above
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("wav: %v at byte %d: %s", e.Err, e.Offset, e.Detail)
}

func (e *FormatError) Unwrap() error { return e.Err }

// Errors of a Writer.
var (
	// ErrClosed reports samples written after Close.
	ErrClosed = errors.New("wav: writer is closed")

	// ErrFormat reports a Format that this package does not write.
	ErrFormat = errors.New("wav: invalid format")

	// ErrUneven reports a number of samples that is not a multiple of the number of channels.
	ErrUneven = errors.New("wav: samples do not divide by the channels")
)
