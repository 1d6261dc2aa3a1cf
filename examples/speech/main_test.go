package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// playMain, in the environment, makes the test binary the program.
const playMain = "SPEECH_TEST_PLAY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(playMain) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// mustRun runs a command line and returns its standard output and error.
func mustRun(t *testing.T, stdin []byte, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, progress bytes.Buffer
	if err := run(t.Context(), args, bytes.NewReader(stdin), &out, &progress); err != nil {
		t.Fatalf("speech %q: %v", args, err)
	}
	return out.String(), progress.String()
}

func readFigures(t *testing.T, text string) figures {
	t.Helper()
	var f figures
	dec := json.NewDecoder(strings.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return f
}

// The sample keeps 20 dB in a quarter of its bytes or less, and is moved without
// a copy, in each kind of memory.
func TestSample(t *testing.T) {
	for _, memory := range []shmstore.Memory{shmstore.Auto, shmstore.Heap} {
		t.Run(memory.String(), func(t *testing.T) {
			o, err := parse([]string{"-o", "json"}, t.Output())
			if err != nil {
				t.Fatal(err)
			}
			o.tweak = func(_ *bus.Pipeline, opts *bus.Options) { opts.Store.Memory = memory }
			var out bytes.Buffer
			if err := o.run(t.Context(), nil, &out, t.Output()); err != nil {
				t.Fatal(err)
			}
			checkSample(t, readFigures(t, out.String()))
		})
	}
}

func checkSample(t *testing.T, f figures) {
	t.Helper()
	format, pcm := readWAV(t, sample)
	if f.Rate != format.Rate || f.Channels != format.Channels || f.Samples != len(pcm) || f.PCMBytes != int64(2*len(pcm)) {
		t.Errorf("%+v, the sample has %d samples of %+v", f, len(pcm), format)
	}
	if f.SNR == nil || *f.SNR < 20 {
		t.Errorf("signal to noise: %s, want 20 dB or more", f.quality())
	}
	if f.CodedBytes == 0 || f.CodedBytes > f.PCMBytes/4 {
		t.Errorf("%d coded bytes of %d, want a quarter at most", f.CodedBytes, f.PCMBytes)
	}
	var edges []string
	for _, e := range f.Edges {
		edges = append(edges, e.Edge)
		if e.Messages != f.Edges[0].Messages || e.Messages < 2 || e.Copies != 0 {
			t.Errorf("%+v, want as many messages as on %s, some of them, and no copy", e, f.Edges[0].Edge)
		}
		if e.P50 <= 0 || e.P99 < e.P50 {
			t.Errorf("%s: p50 is %v ms, p99 %v", e.Edge, e.P50, e.P99)
		}
	}
	if diff := cmp.Diff([]string{"thinker -> talker", "talker -> vocoder", "vocoder -> output"}, edges); diff != "" {
		t.Error(diff)
	}
	if f.Edges[1].Bytes != f.CodedBytes || f.Edges[2].Bytes < f.PCMBytes || f.Edges[0].Bytes < 2*f.PCMBytes {
		t.Errorf("bytes do not agree with %d coded and %d PCM: %+v", f.CodedBytes, f.PCMBytes, f.Edges)
	}
}

// The figures of the report agree with the output.
func TestFiguresAgreeWithTheOutput(t *testing.T) {
	out := t.TempDir() + "/out.wav"
	text, _ := mustRun(t, sample, "-o", "json", "-", out)
	f := readFigures(t, text)
	_, before := readWAV(t, sample)
	_, after := readWAV(t, readFile(t, out))
	if len(after) != len(before) || f.Samples != len(after) {
		t.Fatalf("%d samples became %d, the report says %d", len(before), len(after), f.Samples)
	}
	if snr := codec.SNR(before, after); f.SNR == nil || math.Abs(snr-*f.SNR) > 1e-6 {
		t.Errorf("signal to noise is %.6f dB, the report says %s", snr, f.quality())
	}
}

var (
	timing = regexp.MustCompile(`\d+\.\d{3}`)
	number = regexp.MustCompile(`\d+`)
	spaces = regexp.MustCompile(` {2,}`)
)

func TestTable(t *testing.T) {
	text, _ := mustRun(t, nil)
	table, summary, _ := strings.Cut(text, "\n\n")
	rows := strings.Split(table, "\n")
	width := len(rows[0])
	for i, row := range rows {
		if len(row) != width {
			t.Errorf("columns are not aligned:\n%s", table)
		}
		row = timing.ReplaceAllString(strings.TrimSpace(row), "T")
		row = spaces.ReplaceAllString(row, "|")
		if i > 0 {
			row = number.ReplaceAllString(row, "N")
		}
		rows[i] = row
	}
	want := []string{
		"edge|messages|bytes|p50 ms|p99 ms|copies",
		"thinker -> talker|N|N|T|T|N",
		"talker -> vocoder|N|N|T|T|N",
		"vocoder -> output|N|N|T|T|N",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("table:\n%s", diff)
	}
	const says = "7.N s of audio in N.N s; coded to N of 345962 bytes (N.N %); signal to noise: N.N dB\n"
	pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(says), "N", `\d+`) + "$"
	if !regexp.MustCompile(pattern).MatchString(summary) {
		t.Errorf("summary: %q does not match %q", summary, says)
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"-x", "-x"},
		{"-q -1", "-q is -1: use 0"},
		{"-q NaN", "-q is NaN"},
		{"-q Inf", "-q is +Inf"},
		{"-q fine", `"fine"`},
		{"-q", "-q"},
		{"-o xml", `-o is "xml": use text or json`},
		{"a.wav b.wav c.wav", "3 file names"},
		{"a.wav -q 0", "flags come before file names"},
		{"a.wav -h", "flags come before file names"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			err := run(t.Context(), strings.Fields(c.args), nil, &stdout, &stderr)
			if !errors.Is(err, errUsage) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want a usage error with %q", err, c.says)
			}
			if stdout.Len() > 0 || stderr.Len() > 0 {
				t.Errorf("printed %q and %q: the error says it all", &stdout, &stderr)
			}
			if _, err := os.Stat("-h"); !errors.Is(err, fs.ErrNotExist) {
				t.Error("a flag became a file")
			}
		})
	}
}

// The package's documentation, the help and the flags say the same.
func TestDocumentedUsage(t *testing.T) {
	var help bytes.Buffer
	if _, err := parse([]string{"-h"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatalf("-h: %v", err)
	}
	doc := string(readFile(t, "main.go"))
	if !strings.Contains(doc, "//\t"+usage+"\n") {
		t.Errorf("the package documentation does not have the line %q", usage)
	}
	for _, has := range []string{usage, "-q STEP", "(default 0.32)", "-o format", `(default "text")`} {
		if !strings.Contains(help.String(), has) {
			t.Errorf("the help lacks %q:\n%s", has, &help)
		}
	}
	if !strings.Contains(doc, "default\n// 0.32") || codec.DefaultRatio != 0.32 {
		t.Errorf("the documentation gives another default than %v", codec.DefaultRatio)
	}
}
