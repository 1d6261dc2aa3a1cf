// Command omnibus-bench measures omnibus beside its peers, in one table; with the verb gpu, tensors
// on a GPU beside raw copies. Run it in a checkout:
//
//	go -C bench run ./cmd/omnibus-bench --help
//
// It exits with 0 when all rows were measured, also when targets were missed, 1 when
// a measurement failed, and 2 for a mistake in the command line. Results go to standard output;
// progress and errors go to standard error.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
	"github.com/omnibus-runtime/omnibus/internal/limits"
)

// The exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// A usageError is a mistake in the command line that a command finds, and not cobra.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	// Every error before the start of a command is one of the command line: cobra does not
	// mark them in any other way.
	started := false
	root := newRootCmd()
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case !started || errors.As(err, &usage):
		fmt.Fprintf(stderr, "omnibus-bench: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(stderr, "omnibus-bench: %v\n", withAdvice(err))
	return exitFailed
}

// withAdvice adds advice to an error that a limit of the system has caused.
func withAdvice(err error) error {
	l, met := limits.Met(err)
	if !met {
		return err
	}
	if err = limits.Explain(err); l.Memory {
		err = fmt.Errorf("%w, or make the store smaller (--store-bytes)", err)
	}
	return err
}

const rootLong = `Measure omnibus beside other programs that carry messages, and print one table: a row
for each kind of work, in µs a message, and in brackets the figure of omnibus divided by
this one. Rows and columns are described by:

  go -C bench doc .

Sides of a row alternate, a slice each in a round. Figures are medians of the rounds; a
factor is the median of the factors of the rounds. An interrupted run writes the complete
rows, and fails.`

func newRootCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "omnibus-bench",
		Short:         "Measure omnibus beside gRPC, NATS, sockets and others",
		Long:          rootLong,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	var output, file string
	m := measurement[bench.Table]{names: bench.Names, run: bench.Run}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if output != outputText && output != outputJSON {
			return &usageError{fmt.Sprintf("--output: must be one of %s, %s", outputText, outputJSON)}
		}
		return m.measure(cmd, func(t bench.Table) error {
			var saved error
			if file != "" {
				saved = save(file, t)
			}
			if output == outputJSON {
				return errors.Join(saved, writeJSON(cmd.OutOrStdout(), t))
			}
			return errors.Join(saved, t.WriteText(cmd.OutOrStdout()))
		})
	}
	m.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", outputText, "form of the result: `text|json`")
	cmd.Flags().StringVar(&file, "save", "", "also write the result to `FILE`, as JSON")
	cmd.Flags().IntVar(&m.opts.Busy, "busy", 0, "have `N` processes compute meanwhile; one for each core resembles stages that compute")
	cmd.Flags().IntVar(&m.opts.Rounds, "rounds", bench.DefaultRounds, "measure each side `N` times")
	cmd.Flags().DurationVar(&m.opts.Slice, "slice", bench.DefaultSlice, "measure each side for this `TIME` in a round")
	cmd.AddCommand(newGPUCmd(), newPlotCmd(), newPeerCmd())
	return cmd
}

// The forms of a result.
const (
	outputText = "text"
	outputJSON = "json"
)

// writeJSON writes a report for programs to read.
func writeJSON(out io.Writer, report any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(report)
}

// newPeerCmd is another process of a measurement.
func newPeerCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "peer DESCRIPTION",
		Short:  "Be the other process of a measurement",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// An interrupt typed at the terminal is for the process that measures.
			signal.Ignore(os.Interrupt)
			return bench.Peer(cmd.Context(), args[0], cmd.InOrStdin())
		},
	}
}
