package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

func init() { addVerb(newSubmitCmd) }

// The exit codes of submit for requests that did not complete, besides
// exitFailed.
const (
	exitAborted  = 3
	exitDeadline = 4
)

const submitLong = `Submit a request with one input, and write its results to standard output as
they come.

The input is what the file holds, or standard input, as raw bytes. With --json it
is a JSON value, which the first stages get as msgpack. Results are written as the
bytes they are: of bytes and text that a stage in Python returns these, and of its
other values msgpack. With --json, or -o json, each becomes a line of JSON with its
stage, key, codec and size, and with its value if it is msgpack.

The exit code says how the request ended: 0 completed, 1 failed, 3 aborted,
4 past its deadline. An interrupt aborts it, also at a host that does not answer;
the exit code is 130 then, and 143 for SIGTERM.

With --count the same input is submitted again and again, --concurrency at a time.
The results are received and dropped, and a summary is written instead.`

const submitExample = `  omnibus submit input.bin > output.bin
  echo '{"text": "hello"}' | omnibus submit --json
  omnibus submit input.bin --count 1000 --concurrency 8
  omnibus submit input.bin --deadline 2s --bus speech`

// A submission has the flags of submit.
type submission struct {
	at          finder
	asJSON      bool
	deadline    time.Duration
	count       int
	concurrency int
	output      *choice
}

func newSubmitCmd() *cobra.Command {
	s := &submission{output: newOutput()}
	cmd := &cobra.Command{
		Use:     "submit [FILE|-]",
		Short:   "Submit a request and write its results",
		Long:    submitLong,
		Example: submitExample,
		Args:    upToOne("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.count < 1 || s.concurrency < 1 {
				return &usageError{"--count and --concurrency are at least 1"}
			}
			input, err := s.read(cmd, args)
			if err != nil {
				return err
			}
			return s.run(cmd, input)
		},
	}
	s.at.addTo(cmd)
	cmd.Flags().BoolVar(&s.asJSON, "json", false, "the input is JSON, and so are the results")
	cmd.Flags().Var((*span)(&s.deadline), "deadline", "what joining the host may take, and then each request (default no limit)")
	cmd.Flags().IntVar(&s.count, "count", 1, "submit the input `N` times")
	cmd.Flags().IntVar(&s.concurrency, "concurrency", 1, "have `M` requests open at a time")
	cmd.Flags().VarP(s.output, "output", "o", "form of the results, or of the summary")
	return cmd
}

// read returns the input: bytes, or a value.
func (s *submission) read(cmd *cobra.Command, args []string) (any, error) {
	data, err := readInput(cmd, args)
	if err != nil || !s.asJSON {
		return data, err
	}
	return parseJSON(data)
}

func (s *submission) run(cmd *cobra.Command, input any) (err error) {
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	defer func() { err = interrupted(ctx, err) }()
	node, leave, err := s.join(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if s.count > 1 {
		return s.load(ctx, cmd.OutOrStdout(), node, input)
	}
	write := writeContent
	if s.asJSON || s.output.word == outputJSON {
		write = writeLine
	}
	return outcomeError(s.one(ctx, node, input, func(d *bus.Delivery) error { return write(cmd.OutOrStdout(), d) }))
}

// join connects to the host. The timeout of a request bounds it.
func (s *submission) join(ctx context.Context) (*node.Node, func(), error) {
	joining := ctx
	if s.deadline > 0 {
		var cancel context.CancelFunc
		joining, cancel = within(ctx, s.deadline)
		defer cancel()
	}
	node, leave, err := s.at.join(joining, "omnibus submit", node.JoinOptions{MaxRequests: s.concurrency})
	if err != nil && joining.Err() != nil && ctx.Err() == nil {
		err = &exitError{exitDeadline, err}
	}
	return node, leave, err
}

// one submits the input and calls take for each result.
func (s *submission) one(ctx context.Context, node *node.Node, input any, take func(*bus.Delivery) error) error {
	var opts []bus.SubmitOption
	if s.deadline > 0 {
		opts = append(opts, bus.WithDeadline(time.Now().Add(s.deadline)))
	}
	r, err := node.Stream(ctx, opts...)
	if err != nil {
		return err
	}
	defer r.Close()
	if raw, ok := input.([]byte); ok {
		err = r.Input(ctx).EmitBytes(raw, bus.Last())
	} else {
		err = r.Send(ctx, input, bus.Last())
	}
	if err != nil {
		return err
	}
	for {
		d, err := r.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		err = take(d)
		_ = d.Finish(nil) // the caller's part of a delivery cannot fail
		if err != nil {
			return err
		}
	}
}

// outcomeError gives the end of a request its exit code.
func outcomeError(err error) error {
	switch {
	case errors.Is(err, bus.ErrDeadline), errors.Is(err, context.DeadlineExceeded):
		return &exitError{exitDeadline, err}
	case errors.Is(err, bus.ErrAborted), errors.Is(err, context.Canceled):
		return &exitError{exitAborted, err}
	}
	return err
}
