package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/config"
)

// A pipelineFlag has the flags of the verbs that read pipeline files.
type pipelineFlag struct {
	platform string
	checks   bool // the verb runs nothing: variables need not be set
}

func (f *pipelineFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.platform, "platform", "", "apply what the file says under platforms for `NAME`")
}

// load reads a pipeline file, which may name variables of the environment and
// extend other files.
func (f *pipelineFlag) load(file string) (*config.Pipeline, error) {
	return config.Load(file, config.Options{LookupEnv: os.LookupEnv, NoteUnset: f.checks, Platform: f.platform})
}
