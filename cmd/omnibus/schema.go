package main

import (
	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/config"
)

func init() { addVerb(newSchemaCmd) }

func newSchemaCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of pipeline files, for editors",
		Long: `Print the JSON Schema (draft 2020-12) of pipeline files. Editors that know such
schemas complete keys by it, explain them and underline mistakes while you type;
omnibus validate sees the rest, such as edges that form a cycle. With the YAML
language server, the first line of a file names its schema:

  # yaml-language-server: $schema=pipeline.schema.json`,
		Example: `  omnibus schema > pipeline.schema.json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Schema())
			return err
		},
	}
}
