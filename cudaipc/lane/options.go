package lane

import (
	"log/slog"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

// Options configure a lane. The zero value is a lane without a GPU, over which all tensors travel
// through host memory.
type Options struct {
	// Driver opens the GPUs. Nil means no GPU, for the reason in NoDriver. The caller closes it
	// after the lane.
	Driver cudaipc.Driver
	// NoDriver is the reason for a nil Driver, such as the error of opening it.
	NoDriver error
	// Device is the GPU whose memory pools are made of; default the first. Other visible GPUs are
	// opened when messages name them.
	Device cudaipc.UUID
	// Pool describes the pool of each sender.
	Pool pool.Options
	// Directory publishes the pools for other processes, and finds theirs; nil for a lane within
	// this process.
	Directory Directory
	// Logger receives the features that the lane lacks, unless neither Driver nor NoDriver is set:
	// then no GPU is wanted. Nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.NoDriver == nil {
		o.NoDriver = cudaipc.ErrNoDriver
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}
