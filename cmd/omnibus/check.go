package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus/host"
)

func init() { addVerb(newCheckCmd) }

func newCheckCmd() *cobra.Command {
	var at finder
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the memory of a running pipeline",
		Long: `Check the accounts of the store and of the processes' arenas while they are in use.
Everything that is wrong is listed, and the exit code is 1 then. It should never
happen.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var broken int
			err := ask(cmd, &at, newOutput(), "check", nil, func(r host.CheckReport) error {
				broken = len(r.Violations)
				if output.word == outputJSON {
					return writeJSON(cmd.OutOrStdout(), r)
				}
				for _, v := range r.Violations {
					fmt.Fprintln(cmd.ErrOrStderr(), v)
				}
				if broken > 0 {
					return nil
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "ok, checked in %s\n", timeText(r.Took))
				return err
			})
			if err == nil && broken > 0 {
				err = errReported
			}
			return err
		},
	}
	at.addTo(cmd)
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}
