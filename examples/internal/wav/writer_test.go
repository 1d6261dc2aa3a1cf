package wav

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// seekBuffer is a sink in memory that can seek, as a file can.
type seekBuffer struct {
	b  []byte
	at int
}

func (s *seekBuffer) Write(p []byte) (int, error) {
	if grow := s.at + len(p) - len(s.b); grow > 0 {
		s.b = append(s.b, make([]byte, grow)...)
	}
	s.at += copy(s.b[s.at:], p)
	return len(p), nil
}

func (s *seekBuffer) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekCurrent {
		offset += int64(s.at)
	}
	s.at = int(offset)
	return offset, nil
}

// The samples that were written are read again: from a sink that seeks and one that
// does not, closed or not, written and read in any pieces.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		format := Format{
			Rate:     rapid.IntRange(1, maxRate).Draw(rt, "rate"),
			Channels: rapid.IntRange(1, maxChannels).Draw(rt, "channels"),
		}
		frames := rapid.SliceOf(rapid.SliceOfN(rapid.Int16(), format.Channels, format.Channels)).Draw(rt, "samples")
		samples := slices.Concat(frames...)
		room := rapid.IntRange(format.Channels, 10).Draw(rt, "room")
		before := rapid.SampledFrom([]string{"", "something before"}).Draw(rt, "before")
		seek := rapid.Bool().Draw(rt, "seek")
		closes := rapid.Bool().Draw(rt, "close")

		file := &seekBuffer{b: []byte(before), at: len(before)}
		var sink io.Writer = struct{ io.Writer }{file}
		if seek {
			sink = file
		}
		w, err := NewWriter(sink, format)
		if err != nil {
			rt.Fatal(err)
		}
		for rest := frames; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "piece")
			if err := w.WriteSamples(slices.Concat(rest[:n]...)); err != nil {
				rt.Fatal(err)
			}
			rest = rest[n:]
		}
		if closes {
			if err := w.Close(); err != nil {
				rt.Fatal(err)
			}
		}
		if file.at != len(file.b) {
			rt.Fatalf("the sink is at %d, not at its end %d", file.at, len(file.b))
		}
		written := file.b[len(before):]
		riff, data := binary.LittleEndian.Uint32(written[4:]), binary.LittleEndian.Uint32(written[40:])
		wantRIFF, wantData := uint32(placeholder), uint32(placeholder)
		if seek && closes {
			wantRIFF, wantData = uint32(len(written)-8), uint32(len(written)-44)
		}
		if riff != wantRIFF || data != wantData {
			rt.Fatalf("sizes are %d and %d, want %d and %d", riff, data, wantRIFF, wantData)
		}
		gotFormat, got, err := readAll(bytes.NewReader(written), room)
		if err != nil || gotFormat != format || !slices.Equal(got, samples) {
			rt.Fatalf("read %+v %v %v, wrote %+v %v", gotFormat, got, err, format, samples)
		}
	})
}

func TestWriterOnFilesAndPipes(t *testing.T) {
	samples := make([]int16, 3*bufferBytes+1)
	for i := range samples {
		samples[i] = int16(i * 7919)
	}
	write := func(w io.Writer) {
		writer, err := NewWriter(w, Format{Rate: 16000, Channels: 1})
		if err != nil {
			t.Error(err)
			return
		}
		if err := writer.WriteSamples(samples); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := writer.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := writer.WriteSamples(samples); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v, want ErrClosed", err)
		}
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "out.wav"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	write(file)
	inFile, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	// The two ends of a pipe have a Seek that fails.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		defer w.Close()
		write(w)
	}()
	inPipe, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][]byte{"file": inFile, "pipe": inPipe} {
		if _, got, err := readAll(bytes.NewReader(in), 1000); err != nil || !slices.Equal(got, samples) {
			t.Errorf("%s: %d samples, %v, want %d", name, len(got), err, len(samples))
		}
	}
	if size := binary.LittleEndian.Uint32(inFile[40:]); size != uint32(2*len(samples)) {
		t.Errorf("the file says %d bytes of data, want %d", size, 2*len(samples))
	}
	if size := binary.LittleEndian.Uint32(inPipe[40:]); size != placeholder {
		t.Errorf("the pipe says %d bytes of data, want the placeholder", size)
	}
}

// After Close the caller owns the sink: a second Close does not write to it.
func TestCloseTwice(t *testing.T) {
	sink := &seekBuffer{}
	w, err := NewWriter(sink, Format{Rate: 8000, Channels: 1})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := sink.Write([]byte("behind")); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := string(sink.b[writerHeaderBytes:]), "behindbehind"; got != want {
		t.Errorf("behind the header is %q, want %q", got, want)
	}
}

func TestWriterErrors(t *testing.T) {
	for _, f := range []Format{{}, {Rate: 8000}, {Rate: 8000, Channels: 3}, {Channels: 1}, {Rate: -1, Channels: 1}} {
		if _, err := NewWriter(io.Discard, f); !errors.Is(err, ErrFormat) {
			t.Errorf("%+v: %v, want ErrFormat", f, err)
		}
	}
	w, err := NewWriter(io.Discard, Format{Rate: 8000, Channels: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteSamples(make([]int16, 3)); !errors.Is(err, ErrUneven) {
		t.Errorf("three samples for two channels: %v, want ErrUneven", err)
	}
	if err := w.WriteSamples(make([]int16, 4)); err != nil {
		t.Errorf("after that: %v", err)
	}
	for _, room := range []int{0, writerHeaderBytes - 1, writerHeaderBytes, writerHeaderBytes + 5} {
		sink := &fullSink{room: room}
		w, err := NewWriter(sink, Format{Rate: 8000, Channels: 1})
		if room < writerHeaderBytes {
			if !errors.Is(err, errFull) {
				t.Errorf("room %d: %v, want the error of the sink", room, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := w.WriteSamples(make([]int16, 10)); !errors.Is(err, errFull) {
				t.Errorf("room %d: %v, want the error of the sink", room, err)
			}
		}
	}
}

var errFull = errors.New("sink is full")

type fullSink struct{ room int }

func (s *fullSink) Write(p []byte) (int, error) {
	n := min(s.room, len(p))
	if s.room -= n; n < len(p) {
		return n, errFull
	}
	return n, nil
}
