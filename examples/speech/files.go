package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// source is the WAV that a run reads. It keeps the samples until they are compared
// with the output.
type source struct {
	*wav.Reader
	name  string
	in    io.Reader
	close func()

	mu  sync.Mutex
	pcm []int16
	err error
}

// openSource reads up to the first sample. Reads wait until ctx ends, or the
// source is closed.
func openSource(ctx context.Context, name string, stdin io.Reader) (*source, error) {
	s := &source{name: name}
	closeFile := func() error { return nil }
	switch name {
	case "":
		s.name, s.in = "the sample", bytes.NewReader(sample)
	case "-":
		s.name, s.in = "standard input", stdin
	default:
		f, err := os.Open(name)
		if err != nil {
			return nil, named(name, err)
		}
		s.in, closeFile = f, f.Close
	}
	r, stop := interruptible(ctx, s.in)
	s.close = func() {
		stop()
		_ = closeFile() // only read from
	}
	var err error
	if s.Reader, err = wav.NewReader(r); err != nil {
		s.close()
		return nil, named(s.name, err)
	}
	return s, nil
}

// interruptible reads in until ctx ends or stop is called. A read of in that blocks
// at that time, such as one from a terminal, cannot be interrupted: its goroutine
// ends when the read returns, or with the process.
func interruptible(ctx context.Context, in io.Reader) (r io.Reader, stop func()) {
	pr, pw := io.Pipe()
	unwatch := context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })
	go func() {
		_, err := io.Copy(pw, in)
		pw.CloseWithError(err)
	}()
	return pr, func() {
		unwatch()
		pw.CloseWithError(fs.ErrClosed)
	}
}

// fill reads until dst is full, and reports whether there may be more. A failure of
// the input ends it: the samples before are still coded, and Err returns the
// failure.
func (s *source) fill(dst []int16) (n int, more bool) {
	var err error
	for n < len(dst) && err == nil {
		var read int
		read, err = s.ReadSamples(dst[n:])
		n += read
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pcm = append(s.pcm, dst[:n]...)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = named(s.name, err)
	}
	return n, err == nil
}

// Err is the error that ended the input early, or nil.
func (s *source) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// take gives the next n samples that were read, once.
func (s *source) take(n int) []int16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	head := s.pcm[:n:n]
	s.pcm = s.pcm[n:]
	return head
}

// isFile reports whether the source is the regular file of that name.
func (s *source) isFile(name string) bool {
	f, ok := s.in.(*os.File)
	if !ok {
		return false
	}
	ours, err := f.Stat()
	if err != nil {
		return false
	}
	theirs, err := os.Stat(name)
	return err == nil && theirs.Mode().IsRegular() && os.SameFile(ours, theirs)
}

// sink is the WAV that a run writes.
type sink struct {
	wav     *wav.Writer
	name    string // empty: the samples are dropped
	close   func() error
	perSec  int
	written int // samples
}

// openSink begins a WAV of the source's format. It refuses a name that is the
// source.
func openSink(name string, stdout io.Writer, src *source) (*sink, error) {
	format := src.Format()
	s := &sink{name: name, close: func() error { return nil }, perSec: format.Rate * format.Channels}
	var out io.Writer
	switch {
	case name == "":
		out = io.Discard
	case name == "-":
		out, s.name = stdout, "standard output"
	case src.isFile(name):
		return nil, fmt.Errorf("%s: is the input as well: name another file for the output", name)
	default:
		f, err := os.Create(name)
		if err != nil {
			return nil, named(name, err)
		}
		out, s.close = f, f.Close
	}
	var err error
	if s.wav, err = wav.NewWriter(out, format); err != nil {
		return nil, errors.Join(named(s.name, err), s.close())
	}
	return s, nil
}

func (s *sink) write(pcm []int16) error {
	if err := s.wav.WriteSamples(pcm); err != nil {
		return named(s.name, err)
	}
	s.written += len(pcm)
	return nil
}

// finish makes the output a complete WAV. If err, which made the run fail, is not nil,
// finish adds the length of the output to it.
func (s *sink) finish(err error) error {
	broken := errors.Join(s.wav.Close(), s.close())
	if broken != nil {
		return errors.Join(err, named(s.name, broken))
	}
	if err != nil && s.name != "" {
		return fmt.Errorf("%w (%s ends after %.2f s)", err, s.name, float64(s.written)/float64(s.perSec))
	}
	return err
}

// named puts a file's name before an error, unless the error has one already.
func named(name string, err error) error {
	if err == nil {
		return nil
	}
	var at *fs.PathError
	if errors.As(err, &at) && at.Path == name {
		err = at.Err
	}
	return fmt.Errorf("%s: %w", name, err)
}
