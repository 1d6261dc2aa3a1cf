package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
)

// A measurement is the common part of the two commands that measure.
type measurement[R any] struct {
	opts  bench.Options
	match string
	names func() []string
	run   func(context.Context, bench.Options) (R, error)
}

func (m *measurement[R]) flags(cmd *cobra.Command) {
	cmd.Args = cobra.NoArgs
	cmd.Flags().StringVar(&m.match, "run", "", "measure only rows or figures whose name matches `REGEXP`")
}

// measure measures until it is done or interrupted, and passes the report to write in both cases.
func (m *measurement[R]) measure(cmd *cobra.Command, write func(R) error) error {
	var err error
	if m.opts.Match, err = regexp.Compile(m.match); err != nil {
		return &usageError{fmt.Sprintf("--run: %v", err)}
	}
	m.opts.Peer = []string{os.Args[0], "peer"}
	m.opts.Progress = func(p bench.Progress) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d/%d %s\n", p.Number, p.Of, p.Scenario)
	}
	if err := m.opts.Validate(); err != nil {
		return &usageError{err.Error()}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
	defer stop()
	// From the first interrupt on, the next one ends the program at once.
	defer context.AfterFunc(ctx, stop)()

	report, err := m.run(ctx, m.opts)
	switch {
	case errors.Is(err, bench.ErrNoMatch):
		return &usageError{fmt.Sprintf("--run: %v; there are\n  %s", err, strings.Join(m.names(), "\n  "))}
	case errors.Is(err, bench.ErrOptions):
		return &usageError{err.Error()}
	case err != nil && ctx.Err() != nil:
		err = errors.New("interrupted")
	}
	return errors.Join(err, write(report))
}
