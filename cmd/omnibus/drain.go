package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func init() { addVerb(newDrainCmd) }

func newDrainCmd() *cobra.Command {
	var at finder
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Have a host finish its requests and end",
		Long: `Ask a host to end: open requests get the grace, then its processes are stopped in
order. The answer comes at once; the host is gone when its socket is.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return ask(cmd, &at, output, "drain", nil, func(r struct {
				Grace time.Duration `json:"grace_ns"`
			},
			) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "draining: open requests have up to %v\n", r.Grace)
				return err
			})
		},
	}
	at.addTo(cmd)
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}
