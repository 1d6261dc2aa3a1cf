package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/messages"
)

func init() { addVerb(newAbortCmd) }

func newAbortCmd() *cobra.Command {
	var at finder
	var reason string
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "abort REQUEST",
		Short: "Abort a request",
		Long: `Abort a request, by its number as status, leases and errors show it (leading
zeros may be left out). The process that submitted it gets the reason.`,
		Example: `  omnibus abort 000000000000002a --reason "takes too long"`,
		Args:    oneArg("which request? omnibus status shows those that are alive"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var id messages.RequestID
			if err := id.UnmarshalText([]byte(args[0])); err != nil {
				return &usageError{strings.TrimPrefix(err.Error(), "messages: ") + ", as omnibus status shows them"}
			}
			arguments := map[string]any{"request": id, "reason": reason}
			return ask(cmd, &at, output, "abort", arguments, func(struct{}) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "aborted %v\n", id)
				return err
			})
		},
	}
	at.addTo(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "the reason that the submitter is told (default \"aborted by hand\")")
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}
