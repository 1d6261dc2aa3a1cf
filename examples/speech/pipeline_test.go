package main

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// A step of 0 returns every sample unchanged.
func TestLossless(t *testing.T) {
	mono, stereo := wav.Format{Rate: 22050, Channels: 1}, wav.Format{Rate: 44100, Channels: 2}
	// A size of 0 is a true one when a chunk follows.
	trailer := append(wavBytes(mono, nil), "LIST\x00\x00\x00\x00"...)
	trailer[4] += 8
	inputs := map[string][]byte{"sample": sample, "empty": wavBytes(stereo, nil), "empty before a chunk": trailer}
	for _, n := range []int{1, 2, 511, 512, 513, 12799, 12800, 12801, 13313, 60001} {
		inputs[fmt.Sprintf("mono %d", n)] = wavBytes(mono, sweep(n))
	}
	for _, n := range []int{1, 1023, 1024, 25 * 1024, 25*1024 + 1, 88201} {
		inputs[fmt.Sprintf("stereo %d", n)] = wavBytes(stereo, sweep(2*n))
	}
	inputs["silence"] = wavBytes(stereo, make([]int16, 10_002))
	for name, in := range inputs {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.wav")
			text, _ := mustRun(t, in, "-q", "0", "-o", "json", "-", out)
			wantFormat, want := readWAV(t, in)
			format, got := readWholeWAV(t, out)
			if format != wantFormat || !slices.Equal(got, want) {
				t.Errorf("%d samples of %+v became %d of %+v, not all the same", len(want), wantFormat, len(got), format)
			}
			f := readFigures(t, text)
			if f.SNR != nil || f.Samples != len(want) {
				t.Errorf("the report says %d samples, %s", f.Samples, f.quality())
			}
			frames := mdct.FrameCount(len(want)/format.Channels, mdct.HopFor(format.Rate))
			chunks := int64(max(1, (frames+codec.ChunkFrames-1)/codec.ChunkFrames))
			if got := f.Edges[0].Messages; got != chunks {
				t.Errorf("%d messages, want the %d chunks that %d frames make", got, chunks, frames)
			}
		})
	}
}

// A lossy step works on short, long and quiet inputs.
func TestLossy(t *testing.T) {
	for _, q := range []string{"1e-300", "0.01", "1", "1e300"} {
		for _, n := range []int{0, 1, 600, 30_001} {
			in := wavBytes(wav.Format{Rate: 8000, Channels: 1}, sweep(n))
			text, _ := mustRun(t, in, "-q", q, "-o", "json", "-")
			if f := readFigures(t, text); f.Samples != n {
				t.Errorf("-q %s: %d samples of %d", q, f.Samples, n)
			}
		}
	}
	text, _ := mustRun(t, wavBytes(wav.Format{Rate: 8000, Channels: 1}, nil), "-")
	if !strings.Contains(text, "(no samples); signal to noise: the samples are the same") {
		t.Errorf("the report of an empty input: %s", text)
	}
}

var errFails = errors.New("it fails, as the test says")

// failAt has a stage fail with the delivery of a number.
func failAt(s *bus.StageSpec, seq uint64) {
	handle := s.Handle
	s.Handle = func(t *bus.Task, d *bus.Delivery) error {
		if d.Seq == seq {
			return errFails
		}
		return handle(t, d)
	}
}

// A stage that fails with one chunk ends the run with an error that names the edge
// and the sequence; the samples that were written before are right.
func TestStageFails(t *testing.T) {
	const lastChunk = 13 // of the sample
	for stage, name := range map[int]string{1: "thinker->talker", 2: "talker->vocoder"} {
		for _, at := range []uint64{0, 5, lastChunk} {
			t.Run(fmt.Sprintf("%s/%d", name, at), func(t *testing.T) {
				out := filepath.Join(t.TempDir(), "out.wav")
				o := options{format: "text", in: "testdata/speech.wav", out: out}
				o.tweak = func(p *bus.Pipeline, _ *bus.Options) { failAt(&p.Stages[stage], at) }
				var report bytes.Buffer
				err := o.run(t.Context(), nil, &report, t.Output())
				checkFailure(t, err, name, at)
				if report.Len() > 0 {
					t.Errorf("a run that failed reports %s", &report)
				}
				checkPrefix(t, out, at*codec.ChunkFrames*512)
			})
		}
	}
}

func checkFailure(t *testing.T, err error, edge string, seq uint64) {
	t.Helper()
	var at *bus.StageError
	if !errors.Is(err, errFails) || !errors.As(err, &at) || at.Edge != edge || at.Seq != seq {
		t.Fatalf("got %v, want that sequence %d on edge %s failed", err, seq, edge)
	}
	for _, has := range []string{"testdata/speech.wav: ", "edge " + edge + ","} {
		if !strings.Contains(err.Error(), has) {
			t.Errorf("%q lacks %q", err, has)
		}
	}
}

// checkPrefix checks that a file is a WAV of the first samples of the sample, atMost
// samples long.
func checkPrefix(t *testing.T, name string, atMost uint64) {
	t.Helper()
	_, whole := readWAV(t, sample)
	_, got := readWholeWAV(t, name)
	if uint64(len(got)) > atMost || !slices.Equal(got, whole[:len(got)]) {
		t.Errorf("%d samples, not the first ones or more than the first %d", len(got), atMost)
	}
}
