package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/config"
)

func init() { addVerb(newGraphCmd) }

const formatDOT = "dot"

func newGraphCmd() *cobra.Command {
	pipeline := pipelineFlag{checks: true}
	format, output := newChoice(outputText, formatDOT), newOutput()
	cmd := &cobra.Command{
		Use:   "graph FILE",
		Short: "Draw a pipeline",
		Long: `Draw the stages and edges of a pipeline file as text, or as a Graphviz graph
(-f dot). With -o json, write the resolved pipeline instead.`,
		Args: oneArg("which pipeline file?"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if output.word == outputJSON && cmd.Flags().Changed("format") {
				return &usageError{"-f chooses a drawing, and -o json writes none: keep one of them"}
			}
			p, err := pipeline.load(args[0])
			if err != nil {
				return report(cmd, err)
			}
			switch {
			case output.word == outputJSON:
				return writeJSON(cmd.OutOrStdout(), p)
			case format.word == formatDOT:
				return p.WriteDOT(cmd.OutOrStdout())
			default:
				return p.WriteText(cmd.OutOrStdout())
			}
		},
	}
	pipeline.add(cmd)
	cmd.Flags().VarP(format, "format", "f", "kind of drawing")
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}

// report writes the problems of a refused file in the form that editors can
// follow. It returns other errors.
func report(cmd *cobra.Command, err error) error {
	var problems config.Problems
	if !errors.As(err, &problems) {
		return err
	}
	for _, problem := range problems {
		fmt.Fprintln(cmd.ErrOrStderr(), problem)
	}
	return errReported
}
