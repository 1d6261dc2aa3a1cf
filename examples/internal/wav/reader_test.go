package wav

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// part is one chunk of a stream; its size may be a lie.
type part struct {
	name string
	size uint32
	body string
}

func chunkOf(name, body string) part { return part{name, uint32(len(body)), body} }

// stream puts a stream together, with the padding that odd bodies need.
func stream(riffSize uint32, parts ...part) []byte {
	le := binary.LittleEndian
	b := append(le.AppendUint32([]byte("RIFF"), riffSize), "WAVE"...)
	for _, p := range parts {
		b = append(le.AppendUint32(append(b, p.name...), p.size), p.body...)
		if len(p.body)%2 == 1 && p.name != "data" {
			b = append(b, 0)
		}
	}
	return b
}

// fmtBody is the body of a plain "fmt " chunk.
func fmtBody(tag, channels uint16, rate uint32, bits uint16) string {
	le := binary.LittleEndian
	block := channels * bits / 8
	b := le.AppendUint16(le.AppendUint16(nil, tag), channels)
	b = le.AppendUint32(le.AppendUint32(b, rate), rate*uint32(block))
	return string(le.AppendUint16(le.AppendUint16(b, block), bits))
}

func extensible(channels uint16, subformat string) string {
	return fmtBody(tagExtensible, channels, 48000, 16) + "\x16\x00" + "\x10\x00" + "\x03\x00\x00\x00" + subformat
}

const (
	subPCM   = "\x01\x00" + guidTail
	subFloat = "\x03\x00" + guidTail
)

var mono = chunkOf("fmt ", fmtBody(tagPCM, 1, 22050, 16))

// readAll reads a stream to its end or error with a destination of that size.
func readAll(r io.Reader, room int) (f Format, samples []int16, err error) {
	reader, err := NewReader(r)
	if err != nil {
		return Format{}, nil, err
	}
	for dst := make([]int16, room); ; {
		n, err := reader.ReadSamples(dst)
		samples = append(samples, dst[:n]...)
		if err == io.EOF {
			return reader.Format(), samples, nil
		}
		if err != nil {
			return reader.Format(), samples, err
		}
	}
}

func TestReader(t *testing.T) {
	data := chunkOf("data", "\x01\x00\xff\xff")
	samples := []int16{1, -1}
	for _, c := range []struct {
		name     string
		in       []byte
		channels int
		rate     int
		want     []int16
	}{
		{"plain", stream(40, mono, data), 1, 22050, samples},
		{"wrong size of the file", stream(7, mono, data), 1, 22050, samples},
		{"chunks before the data", stream(0, chunkOf("LIST", "odd"), mono, chunkOf("fact", "\x02\x00\x00\x00"), chunkOf("note", ""), data), 1, 22050, samples},
		{"chunks behind the data", stream(60, mono, data, chunkOf("LIST", "more")), 1, 22050, samples},
		{"format with an empty extension", stream(0, chunkOf("fmt ", fmtBody(tagPCM, 2, 8000, 16)+"\x00\x00"), data), 2, 8000, samples},
		{"long format of odd size", stream(0, chunkOf("fmt ", fmtBody(tagPCM, 2, 8000, 16)+strings.Repeat("x", 45)), data), 2, 8000, samples},
		{"extensible", stream(0, chunkOf("fmt ", extensible(2, subPCM)), data), 2, 48000, samples},
		{"size left at 0", stream(0, mono, part{"data", 0, data.body}), 1, 22050, samples},
		{"size left at 0, header counted", stream(36, mono, part{"data", 0, data.body}), 1, 22050, samples},
		{"size all ones", stream(placeholder, mono, part{"data", placeholder, data.body}), 1, 22050, samples},
		{"size all ones but 0 for data", stream(placeholder, mono, part{"data", 0, data.body}), 1, 22050, samples},
		{"size of espeak-ng", stream(0x7ffff024, mono, part{"data", 0x7ffff000, data.body}), 1, 22050, samples},
		{"no samples", stream(36, mono, chunkOf("data", "")), 1, 22050, nil},
		{"no samples, size all ones", stream(placeholder, mono, part{"data", placeholder, ""}), 1, 22050, nil},
		{"no samples, chunk behind", stream(48, mono, chunkOf("data", ""), chunkOf("LIST", "more")), 1, 22050, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, in := range map[string]io.Reader{
				"at once":       bytes.NewReader(c.in),
				"byte by byte":  iotest.OneByteReader(bytes.NewReader(c.in)),
				"EOF with data": iotest.DataErrReader(bytes.NewReader(c.in)),
			} {
				format, got, err := readAll(in, 64)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if diff := cmp.Diff(Format{Rate: c.rate, Channels: c.channels}, format); diff != "" {
					t.Errorf("%s: format (-want +got):\n%s", name, diff)
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s: samples (-want +got):\n%s", name, diff)
				}
			}
		})
	}
}

func TestReaderErrors(t *testing.T) {
	format := func(tag, channels uint16, rate uint32, bits uint16) []byte {
		return stream(0, chunkOf("fmt ", fmtBody(tag, channels, rate, bits)), chunkOf("data", "\x01\x00"))
	}
	wrongBlock := []byte(fmtBody(tagPCM, 2, 8000, 16))
	wrongBlock[12] = 2
	stereo := chunkOf("fmt ", fmtBody(tagPCM, 2, 8000, 16))
	for _, c := range []struct {
		name   string
		in     []byte
		err    error
		offset int64
		text   string
		early  bool // the stream ends early
		read   int  // samples delivered before
	}{
		{"empty", nil, ErrEmpty, 0, "no bytes at all", true, 0},
		{"text", []byte("hello, world"), ErrNotWAVE, 0, `"hell"`, false, 0},
		{"short text", []byte("hello"), ErrNotWAVE, 0, `"hell"`, false, 0},
		{"very short", []byte("RI"), ErrTruncated, 2, "2 of the 12 bytes of the RIFF header", true, 0},
		{"only the name", []byte("RIFF1234WAV"), ErrTruncated, 11, "11 of the 12", true, 0},
		{"another form", []byte("RIFF1234AVI "), ErrNotWAVE, 8, `"AVI "`, false, 0},
		{"no chunk", stream(0), ErrTruncated, 12, "0 of the 8 bytes of the chunk header", true, 0},
		{"half a chunk header", stream(0, mono)[:15], ErrTruncated, 15, "3 of the 8", true, 0},
		{"half a format", stream(0, mono)[:25], ErrTruncated, 25, `5 of the 16 bytes of the chunk "fmt "`, true, 0},
		{"short format", stream(0, chunkOf("fmt ", "12345678901234")), ErrHeader, 20, "has 14 bytes", false, 0},
		{"no data", stream(0, mono), ErrTruncated, 36, "chunk header", true, 0},
		{"no format", stream(0, chunkOf("data", "\x01\x00")), ErrHeader, 12, `before "fmt "`, false, 0},
		{"two formats", stream(0, mono, mono), ErrHeader, 36, `second chunk "fmt "`, false, 0},
		{"chunk beyond the end", stream(0, part{"LIST", 100, "ten bytes."}), ErrTruncated, 30, `90 bytes of chunk "LIST"`, true, 0},
		{"endless chunk", stream(0, part{"LIST", math.MaxUint32, ""}), ErrHeader, 20, "must begin within", false, 0},
		{"endless format", stream(0, part{"fmt ", math.MaxUint32, mono.body + strings.Repeat("x", 30)}), ErrHeader, 60, "must begin within", false, 0},
		{"many chunks", stream(0, slices.Repeat([]part{chunkOf("note", "")}, maxChunks+1)...), ErrHeader, 12 + 8*maxChunks, `no chunk "data"`, false, 0},
		{"float", format(3, 1, 8000, 32), ErrNotPCM16, 20, "tag is 3", false, 0},
		{"8 bits", format(1, 1, 8000, 8), ErrNotPCM16, 34, "8 bits", false, 0},
		{"24 bits", format(1, 1, 8000, 24), ErrNotPCM16, 34, "24 bits", false, 0},
		{"extensible float", stream(0, chunkOf("fmt ", extensible(2, subFloat))), ErrNotPCM16, 44, "0300", false, 0},
		{"extensible unknown", stream(0, chunkOf("fmt ", extensible(2, "\x01\x00"+strings.Repeat("?", 14)))), ErrNotPCM16, 44, "3f3f", false, 0},
		{"extensible cut", format(tagExtensible, 1, 8000, 16), ErrHeader, 20, "must be 40", false, 0},
		{"no channels", format(1, 0, 8000, 16), ErrChannels, 22, "0, must be 1 or 2", false, 0},
		{"six channels", format(1, 6, 8000, 16), ErrChannels, 22, "6, must be 1 or 2", false, 0},
		{"rate 0", format(1, 1, 0, 16), ErrRate, 24, "0 Hz", false, 0},
		{"huge rate", format(1, 1, 1<<31, 16), ErrRate, 24, "2147483648 Hz", false, 0},
		{"wrong block", stream(0, chunkOf("fmt ", string(wrongBlock))), ErrHeader, 32, "must be 4", false, 0},
		{"truncated data", stream(0, mono, part{"data", 10, "123456"}), ErrTruncated, 50, "4 bytes of the data chunk are missing", true, 3},
		{"truncated in a sample", stream(0, mono, part{"data", 10, "12345"}), ErrTruncated, 49, "5 bytes of the data chunk are missing", true, 2},
		{"odd data", stream(0, mono, part{"data", 3, "123"}), ErrPartialFrame, 40, "3 bytes, 1 more", false, 0},
		{"half a stereo sample", stream(0, stereo, part{"data", 6, "123456"}), ErrPartialFrame, 40, "6 bytes, 2 more", false, 0},
		{"odd byte at the end", stream(0, mono, part{"data", 0, "123"}), ErrPartialFrame, 47, "1 of the 2 bytes", true, 1},
		{"half a stereo sample at the end", stream(0, stereo, part{"data", placeholder, "123456"}), ErrPartialFrame, 50, "2 of the 4 bytes", true, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, samples, err := readAll(bytes.NewReader(c.in), 64)
			var format *FormatError
			if !errors.As(err, &format) || !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.text) {
				t.Fatalf("error is %v, want %v with %q", err, c.err, c.text)
			}
			if format.Offset != c.offset {
				t.Errorf("at byte %d, want %d: %v", format.Offset, c.offset, err)
			}
			if early := errors.Is(err, io.ErrUnexpectedEOF); early != c.early {
				t.Errorf("wraps io.ErrUnexpectedEOF: %v, want %v", early, c.early)
			}
			if len(samples) != c.read {
				t.Errorf("%d samples before the error, want %d", len(samples), c.read)
			}
		})
	}
}

// An error of the stream below comes through wherever it happens, and stays.
func TestReaderPassesErrorsOn(t *testing.T) {
	broken := errors.New("broken")
	whole := stream(0, chunkOf("LIST", "some list"), mono, chunkOf("data", "123456"))
	for n := range whole {
		in := io.MultiReader(bytes.NewReader(whole[:n]), iotest.ErrReader(broken))
		if _, _, err := readAll(in, 64); !errors.Is(err, broken) {
			t.Errorf("broken at byte %d: %v", n, err)
		}
	}
	r, err := NewReader(io.MultiReader(bytes.NewReader(whole[:len(whole)-2]), iotest.ErrReader(broken)))
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]int16, 10)
	if n, err := r.ReadSamples(dst); n != 2 || err != nil {
		t.Errorf("before the error: %d samples, %v", n, err)
	}
	for range 2 {
		if n, err := r.ReadSamples(dst); n != 0 || !errors.Is(err, broken) {
			t.Errorf("after the error: %d samples, %v", n, err)
		}
	}
	if _, err := NewReader(stuckReader{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a stream that delivers nothing: %v, want io.ErrNoProgress", err)
	}
}

type stuckReader struct{}

func (stuckReader) Read([]byte) (int, error) { return 0, nil }

// Samples are delivered before the rest of the stream arrives.
func TestReaderStreams(t *testing.T) {
	in, out := io.Pipe()
	defer in.Close()
	w := make(chan error, 1)
	step := make(chan struct{})
	go func() {
		writer, err := NewWriter(out, Format{Rate: 8000, Channels: 1})
		for i := int16(1); err == nil && i <= 3; i++ {
			<-step
			err = writer.WriteSamples([]int16{i, -i})
		}
		out.Close()
		w <- err
	}()
	r, err := NewReader(in)
	if err != nil {
		t.Fatal(err)
	}
	dst := make([]int16, 100)
	for i := int16(1); i <= 3; i++ {
		step <- struct{}{} // only now is there more
		n, err := r.ReadSamples(dst)
		if err != nil || !slices.Equal(dst[:n], []int16{i, -i}) {
			t.Fatalf("got %v, %v", dst[:n], err)
		}
	}
	if n, err := r.ReadSamples(dst); n != 0 || err != io.EOF {
		t.Errorf("at the end %d, %v", n, err)
	}
	if err := <-w; err != nil {
		t.Error(err)
	}
}

func TestReadIntoTooLittleRoom(t *testing.T) {
	r, err := NewReader(bytes.NewReader(stream(0, chunkOf("fmt ", fmtBody(tagPCM, 2, 8000, 16)), chunkOf("data", "1234"))))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.ReadSamples(make([]int16, 1)); n != 0 || err != io.ErrShortBuffer {
		t.Errorf("space for half a sample: %d, %v", n, err)
	}
	if n, err := r.ReadSamples(make([]int16, 3)); n != 2 || err != nil {
		t.Errorf("space for one and a half: %d, %v", n, err)
	}
}

// For all bytes, reading ends with samples or a *FormatError, and there are no more
// samples than the bytes can hold.
func FuzzReader(f *testing.F) {
	f.Add(stream(40, mono, chunkOf("data", "\x01\x00\xff\xff")))
	f.Add(stream(0, chunkOf("LIST", "odd"), chunkOf("fmt ", extensible(2, subPCM)), part{"data", 0, "12345"}))
	f.Add(stream(0, mono, part{"data", 100, "123"}))
	f.Add(stream(0, part{"LIST", math.MaxUint32, ""}))
	f.Fuzz(func(t *testing.T, in []byte) {
		format, samples, err := readAll(bytes.NewReader(in), 7)
		var wrong *FormatError
		if err != nil && !errors.As(err, &wrong) {
			t.Fatalf("%v is not a *FormatError", err)
		}
		if err != nil && (wrong.Offset < 0 || wrong.Offset > int64(len(in))) {
			t.Fatalf("%v: the stream has %d bytes", err, len(in))
		}
		if sampleBytes*len(samples) > len(in) {
			t.Fatalf("%d samples of %d bytes", len(samples), len(in))
		}
		if err == nil && (format.Channels < 1 || len(samples)%format.Channels != 0) {
			t.Fatalf("%d samples in %+v", len(samples), format)
		}
	})
}

// The memory used does not depend on the sizes in the header.
func TestHugeSizesTakeNoMemory(t *testing.T) {
	for name, in := range map[string][]byte{
		"data": stream(0, mono, part{"data", math.MaxUint32 - 1, "12"}),
		"list": stream(0, part{"LIST", maxPreambleBytes - 100, "12"}),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, _, err := readAll(bytes.NewReader(in), 7); !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: %v, want ErrTruncated", name, err)
		}
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		if allocated > 4*bufferBytes {
			t.Errorf("%s: %d bytes of memory for a stream of %d", name, allocated, len(in))
		}
	}
}
