package main

import (
	"os"

	"github.com/omnibus-runtime/omnibus/config"
)

// loadPipeline reads a pipeline file, which may name variables of the environment.
func loadPipeline(file string) (*config.Pipeline, error) {
	return config.Load(file, config.Options{LookupEnv: os.LookupEnv})
}
