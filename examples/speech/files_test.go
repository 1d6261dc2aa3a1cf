package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// eightBit is the sample as a header of 8-bit PCM would have it.
func eightBit() []byte {
	b := slices.Clone(sample)
	binary.LittleEndian.PutUint16(b[32:], 1)
	binary.LittleEndian.PutUint16(b[34:], 8)
	return b
}

// A bad input ends the run with an error that names it. An output file that
// was there before is left alone.
func TestBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		err  error
		says string
	}{
		"empty":        {nil, wav.ErrEmpty, "no bytes at all"},
		"text":         {[]byte("to be or not to be, that is the question"), wav.ErrNotWAVE, `begins with "to b"`},
		"short header": {sample[:30], wav.ErrTruncated, "at byte 30"},
		"8 bit":        {eightBit(), wav.ErrNotPCM16, "8 bits a sample"},
	} {
		t.Run(name, func(t *testing.T) {
			in := writeFile(t, "in.wav", c.in)
			out := writeFile(t, "out.wav", []byte("precious"))
			for named, args := range map[string][]string{in: {in, out}, "standard input": {"-", out}} {
				err := run(t.Context(), args, bytes.NewReader(c.in), io.Discard, io.Discard)
				if !errors.Is(err, c.err) || !strings.HasPrefix(err.Error(), named+": ") || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %s: ... %s", err, named, c.says)
				}
			}
			if got := readFile(t, out); string(got) != "precious" {
				t.Errorf("the output file became %q", got)
			}
		})
	}
}

func TestInputThatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing.wav")
	for _, name := range []string{missing, dir} {
		err := run(t.Context(), []string{name}, nil, io.Discard, io.Discard)
		if err == nil || strings.Count(err.Error(), name) != 1 || !strings.HasPrefix(err.Error(), name+": ") {
			t.Errorf("got %v, want an error that begins with %s", err, name)
		}
		if name == missing && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v is not fs.ErrNotExist", err)
		}
	}
}

// An input that fails midway fails the run. The output is a complete WAV of all
// samples before the failure, and the error has its length.
func TestInputFailsMidway(t *testing.T) {
	broken := errors.New("the line is dead")
	_, whole := readWAV(t, sample)
	for name, c := range map[string]struct {
		bytes int
		then  io.Reader
		err   error
		says  string
	}{
		"truncated":     {100_000, strings.NewReader(""), wav.ErrTruncated, "at byte 100000: 246006 bytes of the data chunk are missing (OUT ends after 2.27 s)"},
		"half a sample": {100_001, strings.NewReader(""), wav.ErrTruncated, "(OUT ends after 2.27 s)"},
		"only a header": {wavHeaderBytes, strings.NewReader(""), wav.ErrTruncated, "(OUT ends after 0.00 s)"},
		"read error":    {90_000, iotest.ErrReader(broken), broken, "the line is dead (OUT ends after 2.04 s)"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.wav")
			in := io.MultiReader(bytes.NewReader(sample[:c.bytes]), c.then)
			var report bytes.Buffer
			err := run(t.Context(), []string{"-q", "0", "-", out}, in, &report, t.Output())
			if !errors.Is(err, c.err) || !strings.HasPrefix(err.Error(), "standard input: ") {
				t.Fatalf("got %v", err)
			}
			if says := strings.ReplaceAll(c.says, "OUT", out); !strings.HasSuffix(err.Error(), says) {
				t.Errorf("%q does not end with %q", err, says)
			}
			if report.Len() > 0 {
				t.Errorf("a run that failed reports %s", &report)
			}
			if _, got := readWholeWAV(t, out); !slices.Equal(got, whole[:(c.bytes-wavHeaderBytes)/2]) {
				t.Errorf("%d samples of output, %d of input", len(got), (c.bytes-wavHeaderBytes)/2)
			}
		})
	}
}

// brokenWriter fails after so many bytes.
type brokenWriter struct{ room int }

var errBroken = errors.New("broken pipe")

func (w *brokenWriter) Write(p []byte) (int, error) {
	n := min(len(p), w.room)
	if w.room -= n; n < len(p) {
		return n, errBroken
	}
	return n, nil
}

func TestOutputFailsMidway(t *testing.T) {
	for _, room := range []int{0, wavHeaderBytes - 1, wavHeaderBytes, 50_000, len(sample) - 1} {
		err := run(t.Context(), []string{"", "-"}, nil, &brokenWriter{room}, io.Discard)
		if !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "standard output: ") {
			t.Errorf("space for %d bytes: %v", room, err)
		}
	}
	err := run(t.Context(), nil, nil, &brokenWriter{20}, io.Discard)
	if !errors.Is(err, errBroken) || !strings.HasPrefix(err.Error(), "standard output: ") {
		t.Errorf("figures that cannot be written: %v", err)
	}
}

func TestOutputThatCannotBeMade(t *testing.T) {
	dir := t.TempDir()
	for _, out := range []string{filepath.Join(dir, "missing", "out.wav"), dir} {
		err := run(t.Context(), []string{"testdata/speech.wav", out}, nil, io.Discard, io.Discard)
		if err == nil || !strings.HasPrefix(err.Error(), out+": ") || strings.Count(err.Error(), out) != 1 {
			t.Errorf("got %v, want an error that begins with %s", err, out)
		}
	}
}

// The input is not overwritten, under any of its names.
func TestOutputIsTheInput(t *testing.T) {
	in := writeFile(t, "in.wav", sample)
	link := filepath.Join(t.TempDir(), "link.wav")
	if err := os.Link(in, link); err != nil {
		t.Fatal(err)
	}
	stdin, err := os.Open(in)
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	for _, args := range [][]string{{in, in}, {in, link}, {"-", in}} {
		err := run(t.Context(), args, stdin, io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), "is the input as well") {
			t.Errorf("%q: %v", args, err)
		}
		if !bytes.Equal(readFile(t, in), sample) {
			t.Fatalf("%q: the input is changed", args)
		}
	}
}
