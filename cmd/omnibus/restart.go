package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

func init() { addVerb(newRestartCmd) }

func newRestartCmd() *cobra.Command {
	var at finder
	output := newOutput()
	cmd := &cobra.Command{
		Use:   "restart STAGE | STAGE/N",
		Short: "Restart the processes of a stage",
		Long: `End the processes of a stage as the host does when it drains, and start others in
their place: one process after the other, each when the one before serves the stage.
STAGE/N, as status shows it, restarts one of them.

It starts processes with the stage's files as they are now, and those of a stage that
was given up. It does not count as a restart. The requests that a process has get the
stage's grace. The command ends with the first process that does not start: those
behind it stay as they are.`,
		Example: `  omnibus restart talker
  omnibus restart talker/0`,
		Args: oneArg("which stage? omnibus status shows them"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, leave, err := at.join(cmd.Context(), "omnibus restart", callOptions)
			if err != nil {
				return err
			}
			defer leave()
			all, err := processesOf(cmd.Context(), n, args[0])
			if err != nil {
				return err
			}
			return restartAll(cmd, n, output, all)
		},
	}
	at.addTo(cmd)
	cmd.Flags().VarP(output, "output", "o", "form of the result: with json, an object for each process")
	return cmd
}

// processesOf lists the processes that the host has started for a stage, or the selected one.
func processesOf(ctx context.Context, n *node.Node, what string) ([]string, error) {
	ctx, cancel := within(ctx, answerTimeout)
	defer cancel()
	s, err := callFor[host.Status](ctx, n, "status", nil)
	if err != nil {
		return nil, err
	}
	if s.Phase == "" {
		return nil, fmt.Errorf("the host, process %d, is a program of its own (embedded): it starts no processes. Restart them where they were started", s.PID)
	}
	var all, stages []string
	for _, c := range s.Children {
		if c.Name == what || c.Stage == what {
			all = append(all, c.Name)
		}
	}
	for _, st := range s.Stages {
		if st.Stage == what && st.Attach {
			return nil, fmt.Errorf("the host does not start the processes of stage %q (attach): restart them where they were started", what)
		}
		if !st.Attach {
			stages = append(stages, st.Stage)
		}
	}
	switch {
	case len(all) > 0:
		return all, nil
	case len(stages) == 0:
		return nil, fmt.Errorf("there is no stage %q whose processes the host starts, and no other", what)
	}
	return nil, fmt.Errorf("there is no stage, and no process of one, %q: the host starts processes for %s", what, strings.Join(stages, ", "))
}

// restartAll restarts one process after the other.
func restartAll(cmd *cobra.Command, n *node.Node, output *choice, all []string) error {
	for i, name := range all {
		r, err := callFor[host.Restarted](cmd.Context(), n, "restart", map[string]string{"process": name})
		if err != nil {
			if rest := all[i+1:]; len(rest) > 0 {
				err = fmt.Errorf("%w\nnot restarted: %s", err, strings.Join(rest, ", "))
			}
			return err
		}
		if output.word == outputJSON {
			err = writeJSON(cmd.OutOrStdout(), r)
		} else {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "restarted %s: process %d serves the stage, after %s\n", r.Process, r.PID, timeText(r.Took))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
