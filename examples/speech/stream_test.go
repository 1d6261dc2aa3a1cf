package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// live is a run whose input and output a test controls.
type live struct {
	t      *testing.T
	ctx    context.Context
	stdin  *io.PipeWriter
	stdout *io.PipeReader
	stderr *bufio.Reader
	cancel context.CancelFunc
	err    chan error
}

// startLive runs -q 0 from a pipe to a pipe. A run that waits too long fails, so that
// the test does not hang.
func startLive(t *testing.T, tweak func(*bus.Pipeline, *bus.Options)) *live {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	l := &live{t: t, ctx: ctx, stdin: inW, stdout: outR, stderr: bufio.NewReader(errR), cancel: cancel, err: make(chan error, 1)}
	o := options{format: "json", in: "-", out: "-", tweak: tweak}
	go func() {
		err := o.run(ctx, inR, outW, errW)
		inR.CloseWithError(errors.Join(errors.New("the run is over"), err))
		outW.CloseWithError(err)
		errW.CloseWithError(err)
		l.err <- err
	}()
	t.Cleanup(func() { // also when the test ends early
		cancel()
		inW.Close()
		outR.Close()
		errR.Close()
	})
	return l
}

func (l *live) write(b []byte) {
	l.t.Helper()
	if _, err := l.stdin.Write(b); err != nil {
		l.t.Fatalf("write input: %v", err)
	}
}

func (l *live) read(n int) []byte {
	l.t.Helper()
	b := make([]byte, n)
	if got, err := io.ReadFull(l.stdout, b); err != nil {
		l.t.Fatalf("%d of %d bytes of output, then %v", got, n, err)
	}
	return b
}

// progress reads one line.
func (l *live) progress() string {
	l.t.Helper()
	line, err := l.stderr.ReadString('\n')
	if err != nil {
		l.t.Fatalf("read progress: %v", err)
	}
	return line
}

// ignoreProgress reads the rest of standard error.
func (l *live) ignoreProgress() { go func() { _, _ = io.Copy(io.Discard, l.stderr) }() }

var liveFormat = wav.Format{Rate: 22050, Channels: 1}

// chunkBytes of PCM make a chunk; the output is hopBytes behind the input.
var (
	hopBytes   = 2 * mdct.HopFor(liveFormat.Rate)
	chunkBytes = codec.ChunkFrames * hopBytes
)

// openWAV is the beginning of a WAV whose length is not known.
func openWAV(pcm []int16) []byte {
	return openWAVOf(wavBytes(liveFormat, pcm))
}

// Samples are written before later ones are read: those of every chunk at once, but
// for one hop. Progress is printed as well, line by line.
func TestStreaming(t *testing.T) {
	l := startLive(t, nil)
	const chunks = 10
	in := openWAV(sweep(chunks*chunkBytes/2 + 77))

	l.write(in[:wavHeaderBytes])
	out := l.read(wavHeaderBytes)
	for k := range chunks {
		at := wavHeaderBytes + k*chunkBytes
		l.write(in[at : at+chunkBytes])
		out = append(out, l.read(at+chunkBytes-hopBytes-len(out))...)
		if k == 0 {
			if got, want := l.progress(), "thinker -> talker -> vocoder: 0.6 s of audio\n"; got != want {
				t.Errorf("progress is %q, want %q", got, want)
			}
			l.ignoreProgress()
		}
	}
	go func() {
		_, _ = l.stdin.Write(in[wavHeaderBytes+chunks*chunkBytes:])
		l.stdin.Close()
	}()
	rest, err := io.ReadAll(l.stdout)
	if err := errors.Join(err, <-l.err); err != nil {
		t.Fatal(err)
	}
	if out = append(out, rest...); !slices.Equal(out, in) {
		t.Errorf("%d bytes of output, which differ from the %d bytes of input", len(out), len(in))
	}
}

// A run whose input is silent ends with its context.
func TestCancelWhileInputIsSilent(t *testing.T) {
	in := openWAV(sweep(3 * chunkBytes))
	for name, written := range map[string]int{
		"nothing":     0,
		"in a header": 20,
		"header":      wavHeaderBytes,
		"a chunk":     wavHeaderBytes + chunkBytes + 100,
	} {
		t.Run(name, func(t *testing.T) {
			l := startLive(t, nil)
			l.ignoreProgress()
			if written > 0 {
				l.write(in[:written])
			}
			if written >= wavHeaderBytes {
				l.read(wavHeaderBytes)
			}
			if written > chunkBytes {
				l.read(chunkBytes - hopBytes)
			}
			// Samples that were read before the end may still be written: that depends on
			// whether the input or the request ends first.
			more := make(chan int64, 1)
			go func() {
				n, _ := io.Copy(io.Discard, l.stdout) // it ends with the run's error
				more <- n
			}()
			l.cancel()
			err := <-l.err
			if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "standard input: ") {
				t.Errorf("got %v", err)
			}
			seconds := float64(int64(chunkBytes-hopBytes)+<-more) / float64(2*liveFormat.Rate)
			if says := fmt.Sprintf("(standard output ends after %.2f s)", seconds); written > chunkBytes && !strings.Contains(err.Error(), says) {
				t.Errorf("%q lacks %q", err, says)
			}
		})
	}
}

func TestCanceledBeforeItBegins(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, nil, nil, io.Discard, io.Discard)
	if !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), "the sample: ") {
		t.Errorf("got %v", err)
	}
}

// A run that failed does not wait for input.
func TestFailureWhileInputIsSilent(t *testing.T) {
	l := startLive(t, func(p *bus.Pipeline, _ *bus.Options) {
		failAt(&p.Stages[2], 1)
	})
	l.ignoreProgress()
	in := openWAV(sweep(3 * chunkBytes / 2))
	go func() { _, _ = l.stdin.Write(in[:wavHeaderBytes+2*chunkBytes]) }()
	_, _ = io.Copy(io.Discard, l.stdout)
	if err := <-l.err; !errors.Is(err, errFails) || l.ctx.Err() != nil {
		t.Errorf("got %v; the context of the time limit: %v", err, l.ctx.Err())
	}
}
