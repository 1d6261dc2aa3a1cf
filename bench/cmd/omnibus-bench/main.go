// Command omnibus-bench measures omnibus beside its peers, in one table; with the verb gpu, tensors
// on a GPU beside raw copies. Run it in a checkout:
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

const rootLong = `Measure omnibus beside others that carry messages between processes, and print
one table: a row for each kind of work, in µs a message, and in brackets how many
times as much omnibus takes.

  request       one message there and one back, each a request of its own, some at
                a time
  stream        payloads there and back, one after the other
  one-way       payloads there, until the last was read
  fan-out       the same to several processes, which all read every payload
  chain         through several processes, each of which reads what it gets and
                sends as much on; one payload at a time
  python        payloads there and back between two processes in Python
  value         a value of one array put under a key by a process in Python, and got and
                added up by another
  in-process    messages of 64 B through four stages that copy them: in a stream, and
                one request after the other
  idle-memory   what the host, or the server, has of its own with processes attached
  idle-cpu      the processor time of all these processes while no message is sent

Each side has processes of its own; every byte of a payload is read there, and of an
answer here. Omnibus has a caller, a host and its stages, as nodes; with host-calls
the caller is the host. Its peers:

  unix          stream sockets; relayed: a process between the two copies from one to
                the other
  grpc          through a Unix socket: calls for requests, a stream otherwise;
                relayed: a server between the two, which calls the other
  nats          through a NATS server, by TCP: requests with replies, or subjects
  zmq           pairs of sockets, where OMNIBUS_PYTHON has zmq
  mp.Queue      Python's multiprocessing.Queue
  segment       omnibus's own mode segment, in place of ring: files in /dev/shm
  vllm-omni     vLLM-Omni's SharedMemoryConnector, where OMNIBUS_VLLM_OMNI names a
                directory that has it
  channels      goroutines with channels
  protoactor    actors of protoactor-go, with its own mailboxes

They take turns, a slice each in a round. Figures are medians of the rounds; the factor
is the median of the rounds' own.`

func newRootCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "omnibus-bench",
		Short:         "Measure omnibus beside gRPC, NATS, sockets and others",
		Long:          rootLong,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	var c common
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return measure(cmd, &c, bench.Names, bench.Run, func(bench.Table) error { return nil })
	}
	c.flags(cmd)
	cmd.Flags().IntVar(&c.opts.Rounds, "rounds", bench.DefaultRounds, "measure each side `N` times")
	cmd.Flags().DurationVar(&c.opts.Slice, "slice", bench.DefaultSlice, "measure each side for this `TIME` in a round")
	cmd.AddCommand(newIPCCmd(), newGPUCmd(), newPeerCmd())
	return cmd
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
