package wav

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// readHeader reads everything before the samples.
func (r *Reader) readHeader() error {
	riffSize, err := r.readRIFF()
	if err != nil {
		return err
	}
	known := false // whether "fmt " was there
	for range maxChunks {
		at := r.offset
		head, err := r.header(chunkHeaderBytes, "chunk header")
		if err != nil {
			return err
		}
		name, size := string(head[:4]), binary.LittleEndian.Uint32(head[4:])
		switch {
		case name == "data" && !known:
			return &FormatError{at, `chunk "data" comes before "fmt "`, ErrHeader}
		case name == "data":
			return r.beginData(size, riffSize)
		case name == "fmt " && known:
			return &FormatError{at, `a second chunk "fmt "`, ErrHeader}
		case name == "fmt ":
			known = true
			err = r.readFormat(size)
		default:
			err = r.skip(int64(size)+int64(size&1), name)
		}
		if err != nil {
			return err
		}
	}
	return &FormatError{r.offset, fmt.Sprintf(`no chunk "data" among the first %d`, maxChunks), ErrHeader}
}

// readRIFF reads the first twelve bytes and returns the size they give.
func (r *Reader) readRIFF() (size uint32, err error) {
	if _, err := r.in.Peek(1); errors.Is(err, io.EOF) {
		return 0, &FormatError{0, "a RIFF/WAVE header was expected", endedEarly(ErrEmpty)}
	}
	// The name is checked first: for a short stream of another format, the error is the format.
	if name, _ := r.in.Peek(4); len(name) == 4 && string(name) != "RIFF" {
		return 0, &FormatError{0, fmt.Sprintf(`it begins with %q, not "RIFF"`, name), ErrNotWAVE}
	}
	head, err := r.header(riffHeaderBytes, "RIFF header")
	if err != nil {
		return 0, err
	}
	if form := head[8:12]; string(form) != "WAVE" {
		return 0, &FormatError{8, fmt.Sprintf(`the form is %q, not "WAVE"`, form), ErrNotWAVE}
	}
	return binary.LittleEndian.Uint32(head[4:]), nil
}

// header returns the next n bytes of the header, which are the named part.
func (r *Reader) header(n int, part string) ([]byte, error) {
	b, err := r.take(n)
	if errors.Is(err, io.EOF) {
		return nil, &FormatError{
			r.offset + int64(len(b)),
			fmt.Sprintf("the stream ends after %d of the %d bytes of the %s", len(b), n, part),
			endedEarly(ErrTruncated),
		}
	}
	return b, err
}

// skip passes over n bytes, the body of the named chunk.
func (r *Reader) skip(n int64, name string) error {
	if r.offset+n > maxPreambleBytes {
		return &FormatError{r.offset, fmt.Sprintf("chunk %q of %d bytes, the samples must begin within %d",
			name, n, maxPreambleBytes), ErrHeader}
	}
	skipped, err := io.CopyN(io.Discard, r.in, n)
	r.offset += skipped
	if errors.Is(err, io.EOF) {
		return &FormatError{r.offset, fmt.Sprintf("%d bytes of chunk %q are missing", n-skipped, name), endedEarly(ErrTruncated)}
	}
	return err
}

// readFormat reads the body of the chunk "fmt ".
func (r *Reader) readFormat(size uint32) error {
	at := r.offset
	if size < fmtBytes {
		return &FormatError{at, fmt.Sprintf(`chunk "fmt " has %d bytes, must have %d or more`, size, fmtBytes), ErrHeader}
	}
	use := min(int(min(size, fmtExtendedBytes)), fmtExtendedBytes)
	body, err := r.header(use, `chunk "fmt "`)
	if err != nil {
		return err
	}
	if r.format, err = parseFormat(body, at); err != nil {
		return err
	}
	return r.skip(int64(size)+int64(size&1)-int64(use), "fmt ")
}

// parseFormat checks the body of the chunk "fmt ", which begins at the offset at.
func parseFormat(body []byte, at int64) (Format, error) {
	le := binary.LittleEndian
	tag, bits := le.Uint16(body), le.Uint16(body[14:])
	channels, rate := le.Uint16(body[2:]), le.Uint32(body[4:])
	if tag == tagExtensible {
		if len(body) < fmtExtendedBytes {
			return Format{}, &FormatError{at, fmt.Sprintf("an extensible format of %d bytes, must be %d", len(body), fmtExtendedBytes), ErrHeader}
		}
		if guid := body[24:]; string(guid[2:]) != guidTail || le.Uint16(guid) != tagPCM {
			return Format{}, &FormatError{at + 24, fmt.Sprintf("the subformat is %x", guid), ErrNotPCM16}
		}
	} else if tag != tagPCM {
		return Format{}, &FormatError{at, fmt.Sprintf("the format tag is %d, PCM is %d", tag, tagPCM), ErrNotPCM16}
	}
	if bits != 8*sampleBytes {
		return Format{}, &FormatError{at + 14, fmt.Sprintf("%d bits a sample", bits), ErrNotPCM16}
	}
	if channels < 1 || channels > maxChannels {
		return Format{}, &FormatError{at + 2, fmt.Sprintf("%d, must be 1 or 2", channels), ErrChannels}
	}
	if rate == 0 || rate > maxRate {
		return Format{}, &FormatError{at + 4, fmt.Sprintf("%d Hz, must be from 1 to %d", rate, maxRate), ErrRate}
	}
	f := Format{Rate: int(rate), Channels: int(channels)}
	if block := le.Uint16(body[12:]); int(block) != f.frameBytes() {
		return Format{}, &FormatError{at + 12, fmt.Sprintf("%d bytes for a sample of %d channels, must be %d",
			block, channels, f.frameBytes()), ErrHeader}
	}
	return f, nil
}

// beginData determines the size of the samples.
func (r *Reader) beginData(size, riffSize uint32) error {
	// A size of 0 is true, and no placeholder, if the file goes on after the data.
	const beforeRest = chunkHeaderBytes // bytes that riffSize does not count
	goesOn := riffSize != math.MaxUint32 && int64(riffSize)+beforeRest > r.offset
	if r.sized = !isPlaceholder(size) || size == 0 && goesOn; !r.sized {
		return nil
	}
	r.left = int64(size)
	if rest := r.left % int64(r.format.frameBytes()); rest != 0 {
		return &FormatError{
			r.offset - 4,
			fmt.Sprintf("the data has %d bytes, %d more than whole samples of %d channels", size, rest, r.format.Channels),
			ErrPartialFrame,
		}
	}
	return nil
}
