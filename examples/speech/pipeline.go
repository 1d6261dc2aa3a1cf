package main

import (
	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/speech"
)

// window is how many chunks of a request may be in flight from one stage to the
// next.
const window = 8

// pipeline is the codec as three stages, for one request at a time.
// pipeline.yaml describes the same, with a process for each stage.
func pipeline() bus.Pipeline { return speech.Pipeline(0, 1, window) }
