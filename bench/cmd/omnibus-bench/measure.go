package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
)

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

// A report is what was measured.
type report interface {
	WriteText(out io.Writer) error
}

// common is what all commands that measure have in common.
type common struct {
	opts   bench.Options
	match  string
	output string
}

func (c *common) flags(cmd *cobra.Command) {
	cmd.Args = cobra.NoArgs
	cmd.Flags().StringVarP(&c.output, "output", "o", outputText, "form of the result: `text|json`")
	cmd.Flags().StringVar(&c.match, "run", "", "measure only what has a name that matches `REGEXP`")
	cmd.Flags().IntVar(&c.opts.Busy, "busy", 0, "have `N` processes compute meanwhile; one for each core is what stages make of a machine")
}

// measure measures until it is done or interrupted, and writes what there is.
func measure[R report](cmd *cobra.Command, c *common, names func() []string, run func(context.Context, bench.Options) (R, error), kept func(R) error) error {
	if c.output != outputText && c.output != outputJSON {
		return &usageError{fmt.Sprintf("--output: must be one of %s, %s", outputText, outputJSON)}
	}
	var err error
	if c.opts.Match, err = regexp.Compile(c.match); err != nil {
		return &usageError{fmt.Sprintf("--run: %v", err)}
	}
	c.opts.Peer = []string{os.Args[0], "peer"}
	c.opts.Progress = func(p bench.Progress) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%d/%d %s\n", p.Number, p.Of, p.Scenario)
	}
	if err := c.opts.Validate(); err != nil {
		return &usageError{err.Error()}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
	defer stop()
	// From the first interrupt on, the next one ends the program at once.
	defer context.AfterFunc(ctx, stop)()

	report, err := run(ctx, c.opts)
	switch {
	case errors.Is(err, bench.ErrNoMatch):
		return &usageError{fmt.Sprintf("--run: %v; there are\n  %s", err, strings.Join(names(), "\n  "))}
	case errors.Is(err, bench.ErrOptions):
		return &usageError{err.Error()}
	case err != nil && ctx.Err() != nil:
		err = errors.New("interrupted")
	}
	err = errors.Join(err, kept(report))
	if c.output == outputJSON {
		return errors.Join(err, writeJSON(cmd.OutOrStdout(), report))
	}
	return errors.Join(err, report.WriteText(cmd.OutOrStdout()))
}

// measures makes a command one that measures scenarios, with the flags of those.
func measures(cmd *cobra.Command, run func(context.Context, bench.Options) (bench.Report, error), names func() []string) {
	var (
		c     common
		lines string
	)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return measure(cmd, &c, names, run, func(report bench.Report) error {
			if lines == "" {
				return nil
			}
			return appendLines(lines, report)
		})
	}
	c.flags(cmd)
	cmd.Flags().BoolVar(&c.opts.Quick, "quick", false, "measure fewer rounds, for a first impression")
	cmd.Flags().StringVar(&lines, "lines", "", "also append each figure to `FILE`, as a line of JSON")
	cmd.Flags().Int64Var(&c.opts.StoreBytes, "store-bytes", bench.DefaultStoreBytes, "size `N` of the largest stores, and of what they are compared with")
}

// appendLines adds each figure of a report to a file, as a line of JSON.
func appendLines(name string, report bench.Report) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e := json.NewEncoder(f)
	for _, r := range report.Results {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
