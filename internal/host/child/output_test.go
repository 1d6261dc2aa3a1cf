package child

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

func TestSplitter(t *testing.T) {
	full := strings.Repeat("x", maxLineBytes)
	tests := []struct {
		name, in string
		want     []string
	}{
		{name: "nothing"},
		{name: "lines", in: "one\ntwo\n", want: []string{"one", "two"}},
		{name: "empty lines", in: "\n\n", want: []string{"", ""}},
		{name: "no end", in: "one\nhalf", want: []string{"one", "half"}},
		{name: "DOS lines", in: "one\r\ntwo\r\r\n", want: []string{"one", "two"}},
		{name: "progress bar", in: " 10%\r 20%\r100%\ndone\n", want: []string{"100%", "done"}},
		{name: "progress bar without end", in: " 10%\r 20%\r", want: []string{" 20%"}},
		{name: "a return alone", in: "\r"},
		{name: "a full line", in: full + "\n", want: []string{full}},
		{name: "a long line", in: full + "abc\nnext\n", want: []string{full + " ... (3 bytes cut)", "next"}},
		{name: "a long line without end", in: full + "abc", want: []string{full + " ... (3 bytes cut)"}},
		{name: "a long line begun again", in: full + "abc\rshort\n", want: []string{"short"}},
		{name: "cut inside a character", in: full[1:] + "é\n", want: []string{full[1:] + " ... (2 bytes cut)"}},
		{name: "UTF-8", in: "größer 音\tx\n", want: []string{"größer 音\tx"}},
		{name: "terminal codes", in: "\x1b[31mred\x07\n", want: []string{`\x1b[31mred\a`}},
		{name: "not UTF-8", in: "a\xff\xc3\n", want: []string{`a\xff\xc3`}},
		{name: "unprintable runes", in: "\u2028\u202e\n", want: []string{`\u2028\u202e`}},
		{
			name: "escapes count as what they take", in: strings.Repeat("\x00", maxLineBytes) + "\n",
			want: []string{strings.Repeat(`\x00`, maxLineBytes/4) + " ... (3072 bytes cut)"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for _, piece := range []int{1, 2, 3, 7, len(test.in) + 1} {
				if diff := cmp.Diff(test.want, splitIn(test.in, piece), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("in pieces of %d (-want +got):\n%s", piece, diff)
				}
			}
		})
	}
}

// splitIn splits a text that comes in pieces of the given size.
func splitIn(text string, piece int) []string {
	var s splitter
	var lines []string
	for text != "" {
		n := min(piece, len(text))
		lines = append(lines, s.split([]byte(text[:n]))...)
		text = text[n:]
	}
	return append(lines, s.flush()...)
}

// A line without an end takes no more memory than a line that is cut.
func TestSplitterMemory(t *testing.T) {
	var s splitter
	for range 100 {
		s.split(bytes.Repeat([]byte("x"), maxLineBytes))
	}
	if n := cap(s.line); n > 2*maxLineBytes {
		t.Errorf("%d bytes are kept", n)
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add([]byte("one\ntwo\r\n\xff\x1b[0m"), uint16(1), uint8(3))
	f.Add([]byte("\xe2\x98"), uint16(3000), uint8(1))
	f.Add([]byte("é\x00"), uint16(2000), uint8(100))
	f.Fuzz(func(t *testing.T, data []byte, times uint16, piece uint8) {
		// Long lines come from repetition: long inputs would slow the search.
		data = bytes.Repeat(data, min(int(times), 1+4*maxLineBytes/(1+len(data))))
		lines := splitIn(string(data), int(piece)+1)
		if diff := cmp.Diff(splitIn(string(data), len(data)+1), lines); diff != "" {
			t.Errorf("the pieces matter (-whole +pieces):\n%s", diff)
		}
		for _, line := range lines {
			if len(line) > maxLineBytes+len(" ... (18446744073709551615 bytes cut)") {
				t.Errorf("a line of %d bytes", len(line))
			}
			if i := strings.IndexFunc(line, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }); i >= 0 || !utf8.ValidString(line) {
				t.Errorf("%q is not printable, from %d", line, i)
			}
		}
	})
}

func TestRing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := ring{size: rapid.IntRange(1, 5).Draw(t, "size")}
		var model []string
		for _, line := range rapid.SliceOf(rapid.StringN(0, 3, -1)).Draw(t, "lines") {
			r.add(line)
			model = append(model, line)
			model = model[max(0, len(model)-r.size):]
			n := rapid.IntRange(0, 6).Draw(t, "n")
			if diff := cmp.Diff(model[max(0, len(model)-n):], r.last(n), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("last %d (-model +ring):\n%s", n, diff)
			}
		}
	})
}

// A child goes on after its output can no longer be written.
func TestOutputSurvivesItsWriter(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var log tape
	log.changed = make(chan struct{})
	broken := &console{log: slog.New(slog.NewTextHandler(&log, nil)), w: brokenWriter{}}
	o := newOutput("talker/0", 2, broken)
	go func() {
		defer w.Close()
		_, _ = w.WriteString("one\ntwo\nthree\n")
	}()
	o.read(r)
	o.print([]string{"four"})
	if diff := cmp.Diff([]string{"three", "four"}, o.lastLines.last(10)); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if n := strings.Count(log.String(), "no space left"); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, log.String())
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space left") }
