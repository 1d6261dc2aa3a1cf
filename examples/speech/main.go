// Command speech runs a streaming speech codec as a pipeline on the bus:
//
//	WAV -> thinker: MDCT coefficients, as float32 tensors
//	    -> talker:  quantised and entropy-coded chunks
//	    -> vocoder: samples -> WAV
//
// Its stages are in this process. With pipeline.yaml they are processes of
// their own, of which talker is in Python:
//
//	omnibus run examples/speech/pipeline.yaml
//
// Either way the samples are the same, bit for bit. There, the host tells this
// program by the environment what to be: $OMNIBUS_STAGE names a stage to serve;
// without it, $OMNIBUS_SOCKET is where the pipeline is to be found.
//
// Chunks of 25 frames flow while the input is still being read. It prints
// progress, and at the end what moved on each edge, the coded size and the
// ratio of signal to noise.
//
//	usage: speech [-q STEP] [-o text|json] [IN.wav [OUT.wav]]
//
// STEP is the quantiser's step as a fraction of the signal's level, by default
// 0.32; 0 keeps the samples as they are. IN.wav is 16-bit PCM, mono or stereo.
// A dash stands for standard input or output. Without arguments it codes a
// sample that it brings along; without OUT.wav the samples go nowhere.
//
// The figures go to standard output, or to standard error when the samples
// have standard output; progress always goes to standard error.
//
// OUT.wav is made only when IN.wav begins as a WAV should. When something
// fails after that, OUT.wav is still a whole WAV: it ends early, and the error
// says where. The exit status is 0, 1 after a failure, and 2 when the command
// line makes no sense. An interrupt or SIGTERM ends the run in this way, a
// second one at once.
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

// errUsage reports a command line that makes no sense.
var errUsage = errors.New("command line")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // from here on a signal does what it always does
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

	// tweak changes what the bus is opened with: tests set faults with it.
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
	case !(o.step >= 0) || math.IsInf(o.step, 0): // so written, it catches NaN too
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
