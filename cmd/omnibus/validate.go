package main

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/config"
)

func init() { addVerb(newValidateCmd) }

func newValidateCmd() *cobra.Command {
	pipeline := pipelineFlag{checks: true}
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check pipeline files",
		Long: `Check pipeline files completely, and report every problem at once.

Variables (${NAME}) are those of the environment. One that is not set is a note here,
where a text may be anything, and refused by a run. Files that a file stands on
(base_config) must be there. Of its platforms, only the one chosen is
checked. What a run would refuse of a file whose stages are all processes is
refused here: a graph that cannot be, or windows that do not fit the store. Of
one in order the largest payload of each edge is said, and above what size a
payload has the edge to itself.

A file in order is reported on standard output, followed by notes on what
deserves attention. Problems go to standard error, one a line, as
file:line:column: message; what several files have from one that they stand on,
once. With -o json, everything about the files goes to standard output.`,
		Args: func(_ *cobra.Command, files []string) error {
			if len(files) == 0 {
				return errors.New("which pipeline files?")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, files []string) error {
			results := make([]validation, len(files))
			for i, file := range files {
				results[i] = validate(file, &pipeline)
			}
			if output.word == outputJSON {
				if err := writeJSON(cmd.OutOrStdout(), results); err != nil {
					return err
				}
				return outcome(results)
			}
			written := make(map[config.Problem]bool)
			for _, r := range results {
				if err := r.write(cmd, written); err != nil {
					return err
				}
			}
			return outcome(results)
		},
	}
	pipeline.add(cmd)
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}

// A validation is the result of checking one file.
type validation struct {
	File     string           `json:"file"`
	OK       bool             `json:"ok"`
	Problems config.Problems  `json:"problems,omitempty"`
	Error    string           `json:"error,omitempty"` // why the file could not be read
	Pipeline *config.Pipeline `json:"pipeline,omitempty"`
	Edges    []bus.EdgeBounds `json:"edges,omitempty"` // of a file whose stages are all processes
}

func validate(file string, pipeline *pipelineFlag) validation {
	r := validation{File: file}
	p, err := pipeline.load(file)
	if err == nil {
		var refused error
		if r.Edges, refused = p.CheckHost(); refused != nil {
			err = &buildError{refused}
		}
	}
	switch {
	case err == nil:
		r.OK, r.Pipeline = true, p
	case !errors.As(err, &r.Problems):
		r.Error = err.Error()
	}
	return r
}

// write writes the result for a file. Problems of a shared base file that were written for another
// file are only counted.
func (r *validation) write(cmd *cobra.Command, written map[config.Problem]bool) error {
	stderr := cmd.ErrOrStderr()
	repeated := 0
	for _, problem := range r.Problems {
		key := *problem
		key.File = filepath.Clean(key.File) // a file of the command line is named as there
		if written[key] {
			repeated++
			continue
		}
		written[key] = true
		fmt.Fprintln(stderr, problem)
	}
	if repeated > 0 {
		fmt.Fprintf(stderr, "omnibus: %s: refused for what is reported above (%s)\n", r.File, plural(repeated, "problem"))
	}
	if r.Error != "" {
		fmt.Fprintf(stderr, "omnibus: %s\n", r.Error)
	}
	if !r.OK {
		return nil
	}
	stages, edges := len(r.Pipeline.Stages), len(r.Pipeline.Edges)
	if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s: ok (%s, %s)\n", r.File, plural(stages, "stage"), plural(edges, "edge")); err != nil {
		return err
	}
	for _, e := range r.Edges {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "  %s -> %s: payloads of up to %s; those above %s pass alone\n",
			cmp.Or(e.From, "caller"), cmp.Or(e.To, "caller"), sizeText(e.Largest), sizeText(e.Window)); err != nil {
			return err
		}
	}
	for _, note := range r.Pipeline.Notes {
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), note); err != nil {
			return err
		}
	}
	return nil
}

func outcome(results []validation) error {
	for _, r := range results {
		if !r.OK {
			return errReported
		}
	}
	return nil
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
