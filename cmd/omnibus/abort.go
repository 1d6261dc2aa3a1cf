package main

import (
	"fmt"
	"strconv"

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
zeros may be left out). Who submitted it gets the reason.

That number is hexadecimal. With -o json, status and leases give it as a plain
number: omnibus abort $(printf %x 42).`,
		Example: `  omnibus abort 000000000000002a --reason "takes too long"`,
		Args:    oneArg("which request? omnibus status shows those that are alive"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := strconv.ParseUint(args[0], 16, 64)
			if err != nil {
				return &usageError{fmt.Sprintf("%q is no request: one is named by up to 16 hexadecimal digits, as omnibus status shows them", args[0])}
			}
			arguments := map[string]any{"request": id, "reason": reason}
			return ask(cmd, &at, output, "abort", arguments, func(struct{}) error {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "aborted %v\n", messages.RequestID(id))
				return err
			})
		},
	}
	at.addTo(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "what to tell whoever submitted it (default \"aborted by hand\")")
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}
