// Command speech runs a streaming speech codec as a pipeline on the bus:
//
//	WAV -> thinker: MDCT coefficients, as float32 tensors
//	    -> talker:  quantised and entropy-coded chunks
//	    -> vocoder: samples -> WAV
//
// Chunks of 25 frames flow while the input is still being read. It prints
// progress, and at the end what moved on each edge, the coded size and the
// ratio of signal to noise.
//
// Usage: speech [-q STEP] [-o text|json] [IN.wav [OUT.wav]]
//
// STEP is the quantiser's step as a fraction of the signal's level; 0 keeps
// the samples as they are. A dash stands for standard input or output. Without
// arguments it codes a sample that it brings along.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/speech/internal/codec"
)

//go:embed testdata/speech.wav
var sample []byte

// errUsage reports a command line that makes no sense.
var errUsage = errors.New("usage: speech [-q STEP] [-o text|json] [IN.wav [OUT.wav]]")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "speech:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "speech:", err)
		os.Exit(1)
	}
}

// options is the command line.
type options struct {
	step    float64
	format  string
	in, out string           // file names, "-", or empty
	edges   func([]bus.Edge) // for tests: faults
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	in, closeIn, err := openInput(o.in, stdin)
	if err != nil {
		return err
	}
	defer closeIn()
	out, closeOut, err := openOutput(o.out, stdout)
	if err != nil {
		return err
	}
	r, err := transcode(ctx, o, in, out, stderr)
	if err := errors.Join(err, closeOut()); err != nil {
		return err
	}
	report := stdout
	if o.out == "-" {
		report = stderr // the samples have standard output
	}
	return r.write(report, o.format)
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{}
	fs := flag.NewFlagSet("speech", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprintln(stderr, errUsage); fs.PrintDefaults() }
	fs.Float64Var(&o.step, "q", codec.DefaultRatio, "quantiser `step` as a fraction of the signal's level; 0: none")
	fs.StringVar(&o.format, "o", "text", "`format` of the figures: text or json")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return o, err
	} else if err != nil {
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	switch {
	case o.format != "text" && o.format != "json":
		return o, fmt.Errorf("%w: -o is %q: use text or json", errUsage, o.format)
	case o.step < 0 || math.IsNaN(o.step) || math.IsInf(o.step, 0):
		return o, fmt.Errorf("%w: -q is %v: use 0, or a positive fraction", errUsage, o.step)
	case fs.NArg() > 2:
		return o, fmt.Errorf("%w: %d file names", errUsage, fs.NArg())
	}
	o.in, o.out = fs.Arg(0), fs.Arg(1)
	return o, nil
}

func openInput(name string, stdin io.Reader) (io.Reader, func(), error) {
	switch name {
	case "":
		return bytes.NewReader(sample), func() {}, nil
	case "-":
		return stdin, func() {}, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	return f, func() { _ = f.Close() }, nil // only read from
}

func openOutput(name string, stdout io.Writer) (io.Writer, func() error, error) {
	switch name {
	case "":
		return io.Discard, func() error { return nil }, nil
	case "-":
		return stdout, func() error { return nil }, nil
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}
