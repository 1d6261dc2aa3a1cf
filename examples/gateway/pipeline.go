package main

import (
	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/speech"
)

// pipeline is the codec of examples/speech, for many requests at a time. No stage
// waits for a client.
func pipeline(replicas, inflight int) bus.Pipeline { return speech.Pipeline(replicas, inflight, 0) }
