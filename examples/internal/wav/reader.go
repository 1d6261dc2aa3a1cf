package wav

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Limits on the bytes before the samples. Common files are far below them, and a
// hostile stream is not read for ever.
const (
	maxChunks        = 64
	maxPreambleBytes = 64 << 20
)

// bufferBytes is the size of the read buffer.
const bufferBytes = 32 << 10

// A Reader delivers the samples of a stream.
type Reader struct {
	in     *bufio.Reader
	offset int64 // of the next byte of in
	format Format
	left   int64 // bytes of data not yet read, if sized
	sized  bool  // false to read up to the end of the stream
	err    error // of an earlier ReadSamples
}

// NewReader reads the header, up to the first sample. An error is a *FormatError
// or that of r.
func NewReader(r io.Reader) (*Reader, error) {
	reader := &Reader{in: bufio.NewReaderSize(r, bufferBytes)}
	if err := reader.readHeader(); err != nil {
		return nil, err
	}
	return reader, nil
}

// Format returns the rate and the number of channels.
func (r *Reader) Format() Format { return r.format }

// ReadSamples reads samples into the front of dst, interleaved, and returns
// their number: whole samples of all channels, at least one, as many as are
// available. It does not wait to fill dst, which must hold one sample of every
// channel. At the end the error is io.EOF; any other is a *FormatError or that of
// the stream. After an error, every further call returns the same error.
func (r *Reader) ReadSamples(dst []int16) (n int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	if len(dst) < r.format.Channels {
		return 0, io.ErrShortBuffer
	}
	n, r.err = r.readSamples(dst)
	return n, r.err
}

func (r *Reader) readSamples(dst []int16) (int, error) {
	if r.sized && r.left == 0 {
		return 0, io.EOF
	}
	frame := r.format.frameBytes()
	if begun, err := r.in.Peek(frame); err != nil {
		return 0, r.endOfSamples(len(begun), err)
	}
	size := min(r.in.Buffered(), sampleBytes*len(dst))
	if r.sized {
		size = int(min(int64(size), r.left))
	}
	size -= size % frame
	raw, err := r.take(size)
	if err != nil {
		return 0, err
	}
	for i := range size / sampleBytes {
		dst[i] = int16(binary.LittleEndian.Uint16(raw[sampleBytes*i:]))
	}
	r.left -= int64(size)
	return size / sampleBytes, nil
}

// endOfSamples makes the error for a stream that ended with so many bytes of a
// sample.
func (r *Reader) endOfSamples(begun int, err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if !r.sized && begun == 0 {
		return io.EOF
	}
	end := r.offset + int64(begun)
	if !r.sized {
		return &FormatError{end, fmt.Sprintf("the stream ends after %d of the %d bytes of a sample",
			begun, r.format.frameBytes()), endedEarly(ErrPartialFrame)}
	}
	return &FormatError{end, fmt.Sprintf("%d bytes of the data chunk are missing", r.left-int64(begun)), endedEarly(ErrTruncated)}
}

// endedEarly adds to a cause that the stream ended early.
func endedEarly(cause error) error { return fmt.Errorf("%w (%w)", cause, io.ErrUnexpectedEOF) }

// take returns the next n bytes of the buffered stream, which are valid until
// the next call.
func (r *Reader) take(n int) ([]byte, error) {
	b, err := r.in.Peek(n)
	if err != nil {
		return b, err
	}
	r.offset += int64(n)
	_, err = r.in.Discard(n)
	return b, err
}
