// Command speech runs a streaming speech codec as a pipeline on the bus:
//
//	WAV -> thinker: MDCT coefficients, as float32 tensors
//	    -> talker:  quantised and entropy-coded chunks
//	    -> vocoder: samples -> WAV
//
// Its stages are in this process. With pipeline.yaml they are processes of
// their own, and talker is in Python:
//
//	omnibus run examples/speech/pipeline.yaml
//
// Either way the samples are the same, bit for bit. With pipeline.yaml, the host
// sets the environment of this program: $OMNIBUS_STAGE names a stage to serve;
// without it, the program joins the pipeline at $OMNIBUS_SOCKET.
//
// Chunks of 25 frames flow while the input is still being read. It prints
// progress, and at the end the traffic of each edge, the coded size and the
// ratio of signal to noise.
//
//	usage: speech [-q STEP] [-o text|json] [IN.wav [OUT.wav]]
//
// STEP is the quantiser's step as a fraction of the signal's level, by default
// 0.32; 0 keeps the samples as they are. IN.wav is 16-bit PCM, mono or stereo.
// A dash stands for standard input or output. Without arguments it codes a
// built-in sample; without OUT.wav the samples are dropped.
//
// The figures go to standard output, or to standard error when the samples
// have standard output; progress always goes to standard error.
//
// OUT.wav is made only when IN.wav begins with a valid header. After a later
// failure, OUT.wav is still a complete WAV: it ends early, and the error has its
// length. The exit status is 0, 1 after a failure, and 2 for an invalid command
// line. An interrupt or SIGTERM ends the run as a failure, a second one ends the
// process at once.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
)

//go:embed testdata/speech.wav
var sample []byte

const usage = "usage: speech [-q STEP] [-o text|json] [IN.wav [OUT.wav]]"

// errUsage reports an invalid command line.
var errUsage = errors.New("command line")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the next signal ends the process
	var err error
	if stage := os.Getenv(node.EnvStage); stage != "" {
		err = serve(ctx, stage)
	} else {
		err = run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	}
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return
	}
	fmt.Fprintln(os.Stderr, "speech:", err)
	if errors.Is(err, errUsage) {
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
	os.Exit(1)
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	return o.run(ctx, stdin, stdout, stderr)
}

// options is the command line.
type options struct {
	step    float64
	format  string
	in, out string // file names, "-", or empty

	// tweak changes the pipeline and options of the bus: tests inject faults with it.
	tweak func(*bus.Pipeline, *bus.Options)
}

func parse(args []string, stderr io.Writer) (options, error) {
	o := options{}
	fs := flag.NewFlagSet("speech", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // errors are returned, and printed once
	fs.Float64Var(&o.step, "q", codec.DefaultRatio, "quantiser `STEP` as a fraction of the signal's level; 0: none")
	fs.StringVar(&o.format, "o", "text", "`format` of the figures: text or json")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fs.SetOutput(stderr)
		fmt.Fprintln(stderr, usage)
		fs.PrintDefaults()
		return o, err
	} else if err != nil {
		return o, fmt.Errorf("%w: %w", errUsage, err)
	}
	o.in, o.out = fs.Arg(0), fs.Arg(1)
	switch {
	case o.format != "text" && o.format != "json":
		return o, fmt.Errorf("%w: -o is %q: use text or json", errUsage, o.format)
	case !(o.step >= 0) || math.IsInf(o.step, 0): // in this form it rejects NaN as well
		return o, fmt.Errorf("%w: -q is %v: use 0, or a positive fraction", errUsage, o.step)
	case isFlag(o.in) || isFlag(o.out):
		return o, fmt.Errorf("%w: flags come before file names; write a file's name that begins with a dash as ./-NAME", errUsage)
	case fs.NArg() > 2:
		return o, fmt.Errorf("%w: %d file names, there can be two", errUsage, fs.NArg())
	}
	return o, nil
}

func isFlag(name string) bool { return strings.HasPrefix(name, "-") && name != "-" }

func (o options) run(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	src, err := openSource(ctx, o.in, stdin)
	if err != nil {
		return err
	}
	defer src.close()
	out, err := openSink(o.out, stdout, src)
	if err != nil {
		return err
	}
	f, err := transcode(ctx, o, src, out, newProgress(stderr, src.Format()))
	if err := out.finish(err); err != nil {
		return err
	}
	report, name := stdout, "standard output"
	if o.out == "-" {
		report, name = stderr, "standard error"
	}
	return named(name, f.write(report, o.format))
}
