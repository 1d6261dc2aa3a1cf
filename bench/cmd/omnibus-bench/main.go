// Command omnibus-bench measures this machine: the bus beside plain Go, payloads
// between processes, connectors, and tensors on a GPU, each beside others that do
// the same; and omnibus beside its peers, in one table. Run it in a checkout:
//
//	go -C bench run ./cmd/omnibus-bench --help
//
// It exits with 0 when everything was measured, whatever the figures are, 1 when
// something failed, and 2 when it was called wrongly. Results go to standard output;
// everything else goes to standard error.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

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

// A usageError is a mistake in the command line that only a command can see.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

// run executes a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	// Until a command starts, every error is one of the command line: cobra does not
	// mark those in any other way.
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

// withAdvice adds what to do where a limit of the system is the cause.
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

func newRootCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "omnibus-bench",
		Short:         "Measure this machine against plain Go",
		Long:          rootLong,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	measures(cmd, bench.Run, bench.Names)
	cmd.AddCommand(newIPCCmd(), newConnectorCmd(), newGPUCmd(), newPeersCmd())
	return cmd
}
