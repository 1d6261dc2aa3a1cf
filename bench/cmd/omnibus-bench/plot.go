package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
)

// newPlotCmd draws a table that was measured before.
func newPlotCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "plot FILE",
		Short: "Draw the factors of the table in FILE, of --save or -o json, as SVG",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := os.ReadFile(args[0])
			if err != nil {
				return err
			}
			var table bench.Table
			if err := json.Unmarshal(text, &table); err != nil {
				return fmt.Errorf("%s: %w", args[0], err)
			}
			return table.WriteSVG(cmd.OutOrStdout())
		},
	}
}

// save writes a table into a file, as JSON.
func save(path string, t bench.Table) error {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(writeJSON(out, t), out.Close())
}
