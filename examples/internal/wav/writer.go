package wav

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

const (
	writerHeaderBytes = riffHeaderBytes + chunkHeaderBytes + fmtBytes + chunkHeaderBytes
	riffSizeAt        = 4
	dataSizeAt        = writerHeaderBytes - 4

	// The size in the RIFF header counts all but the first eight bytes.
	riffUncounted = riffSizeAt + 4
	maxDataBytes  = math.MaxUint32 - 1 - (writerHeaderBytes - riffUncounted)
)

// A Writer writes samples to a stream.
type Writer struct {
	out     io.Writer
	patch   io.WriteSeeker // out, if it can seek
	start   int64          // where in patch the header is
	format  Format
	written int64 // bytes of data
	buf     []byte
	err     error // of an earlier write; ErrClosed after Close
}

// NewWriter writes a header with open sizes. Close will fill them in if w is an
// io.WriteSeeker that can seek; a pipe or a terminal, which has the method and
// fails at it, stays as it is. An error wraps ErrFormat or is that of w.
func NewWriter(w io.Writer, f Format) (*Writer, error) {
	if f.Channels < 1 || f.Channels > maxChannels || f.Rate < 1 || f.Rate > maxRate {
		return nil, fmt.Errorf("%w: %+v, must have 1 or 2 channels and a rate from 1 to %d", ErrFormat, f, maxRate)
	}
	writer := &Writer{out: w, format: f, buf: make([]byte, 0, bufferBytes)}
	if seeker, ok := w.(io.WriteSeeker); ok {
		if start, err := seeker.Seek(0, io.SeekCurrent); err == nil {
			writer.patch, writer.start = seeker, start
		}
	}
	if _, err := w.Write(f.header()); err != nil {
		return nil, fmt.Errorf("wav: write header: %w", err)
	}
	return writer, nil
}

// header returns everything before the samples, with open sizes.
func (f Format) header() []byte {
	le := binary.LittleEndian
	h := le.AppendUint32([]byte("RIFF"), placeholder)
	h = le.AppendUint32(append(h, "WAVEfmt "...), fmtBytes)
	h = le.AppendUint16(h, tagPCM)
	h = le.AppendUint16(h, uint16(f.Channels))
	h = le.AppendUint32(h, uint32(f.Rate))
	h = le.AppendUint32(h, uint32(min(int64(f.Rate)*int64(f.frameBytes()), math.MaxUint32)))
	h = le.AppendUint16(h, uint16(f.frameBytes()))
	h = le.AppendUint16(h, 8*sampleBytes)
	return le.AppendUint32(append(h, "data"...), placeholder)
}

// WriteSamples writes interleaved samples. An error wraps ErrUneven or ErrClosed
// or is that of the stream, which then repeats.
func (w *Writer) WriteSamples(samples []int16) error {
	if w.err != nil {
		return w.err
	}
	if len(samples)%w.format.Channels != 0 {
		return fmt.Errorf("%w: %d samples for %d channels", ErrUneven, len(samples), w.format.Channels)
	}
	for len(samples) > 0 {
		part := samples[:min(len(samples), cap(w.buf)/sampleBytes)]
		samples = samples[len(part):]
		w.buf = w.buf[:0]
		for _, s := range part {
			w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(s))
		}
		n, err := w.out.Write(w.buf)
		w.written += int64(n)
		if err != nil {
			w.err = fmt.Errorf("wav: write samples: %w", err)
			return w.err
		}
	}
	return nil
}

// Close fills in the sizes, if the stream can seek and they fit into 32 bits,
// and leaves the stream open, at its end. It does so even after a failed write, for
// the samples before the failure. A second Close does nothing.
func (w *Writer) Close() error {
	if errors.Is(w.err, ErrClosed) {
		return nil
	}
	w.err = ErrClosed
	if w.patch == nil || w.written > maxDataBytes {
		return nil
	}
	whole := w.written - w.written%int64(w.format.frameBytes())
	err := w.patchSize(dataSizeAt, whole)
	if err == nil {
		err = w.patchSize(riffSizeAt, writerHeaderBytes-riffUncounted+whole)
	}
	if err == nil {
		_, err = w.patch.Seek(w.start+writerHeaderBytes+w.written, io.SeekStart)
	}
	if err != nil {
		return fmt.Errorf("wav: fill in the sizes: %w", err)
	}
	return nil
}

func (w *Writer) patchSize(at, size int64) error {
	if _, err := w.patch.Seek(w.start+at, io.SeekStart); err != nil {
		return err
	}
	_, err := w.patch.Write(binary.LittleEndian.AppendUint32(nil, uint32(size)))
	return err
}
