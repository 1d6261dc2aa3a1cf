package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/host/doctor"
)

func init() { addVerb(newDoctorCmd) }

func newDoctorCmd() *cobra.Command {
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out whether this machine can run a pipeline",
		Long: `Try what a host and its processes need, and report what is missing, and what works in
another way than it could: what of GPUs lanes of tensors could use, too. The exit code
is 1 if something needed is missing.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			checks := doctor.Examine(cmd.Context(), doctor.Subject{
				Folder: node.SocketFolder(), GPUs: probeGPUs(cmd.Context(), openGPUs),
			})
			if err := writeChecks(cmd, output.word, checks); err != nil {
				return err
			}
			if !doctor.Healthy(checks) {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().VarP(output, "output", "o", "form of the result")
	return cmd
}

func writeChecks(cmd *cobra.Command, form string, checks []doctor.Check) error {
	if form == outputJSON {
		return writeJSON(cmd.OutOrStdout(), checks)
	}
	t := &table{heading: []string{"CHECK", "", "FOUND"}}
	for _, c := range checks {
		text := c.Found
		if c.Advice != "" {
			text = fmt.Sprintf("%s: %s", c.Found, c.Advice)
		}
		t.add(c.Name, c.Verdict, text)
	}
	return t.write(cmd.OutOrStdout())
}
