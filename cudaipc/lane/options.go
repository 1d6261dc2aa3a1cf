package lane

import (
	"log/slog"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

// Options configure a lane. The zero value is a lane without a GPU, over which
// everything travels through host memory.
type Options struct {
	// Driver opens the GPUs. Nil means that there is none, for the reason that
	// NoDriver says. It is closed by whoever opened it, after the lane.
	Driver cudaipc.Driver
	// NoDriver is why there is no driver, such as what opening it returned.
	NoDriver error
	// Device is the GPU whose memory pools are made of; default the first. Others that this process can see are used as they
	// come in messages.
	Device cudaipc.UUID
	// Pool describes the pool of each sender.
	Pool pool.Options
	// Directory is where other processes find the pools, and where theirs are
	// found; nil for a lane within this process.
	Directory Directory
	// Logger is told what the lane cannot do, unless neither Driver nor NoDriver is
	// set: then nobody wants a GPU. Nil discards.
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
