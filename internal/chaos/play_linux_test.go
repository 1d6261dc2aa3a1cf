package chaos

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

// play is what a run puts on: which processes take part, in what pipeline, and
// what a request is.
type play struct {
	cast      []role
	pipeline  bus.Pipeline
	options   bus.Options
	roundTrip func(ctx context.Context, s submitter, tag uint32, i int) error
	// mortal says that a request may fail with a process that worked for it.
	mortal bool
	own    int // requests at a time that the host submits
	// breath is the longest pause between two kills.
	breath time.Duration
	join   node.JoinOptions
}

// playEnv tells a process which play it takes part in.
const playEnv = "OMNIBUS_CHAOS_PLAY"

// plays are all of them, by name.
var plays = map[string]func() play{
	"":              relayed,
	"direct":        func() play { return direct(false) },
	"direct python": func() play { return direct(true) },
	"drops":         func() play { return drops(bus.StateRequest) },
	"drops again":   func() play { return drops(bus.StateNone) },
	"gpu":           gpuPlay,
}

// thePlay is the one that this process takes part in.
func thePlay() play { return plays[os.Getenv(playEnv)]() }

// in says of each role which play it is in.
func (p play) in(name string) play {
	for i, r := range p.cast {
		p.cast[i].env = slices.Concat(r.env, []string{playEnv + "=" + name})
	}
	return p
}

// relayed is the play in which the host sees every delivery, and no request
// fails.
func relayed() play {
	return play{
		cast: cast(), pipeline: pipeline(), options: busOptions(), own: ownSubmitters, breath: maxBreath,
		roundTrip: func(ctx context.Context, s submitter, tag uint32, i int) error {
			return roundTrip(ctx, s, tag, 1+i%maxInputs)
		},
	}
}

// died reports whether a request ended because a process did.
func died(err error) bool {
	return err != nil && !errors.Is(err, errBroken) && !errors.Is(err, bus.ErrHostGone)
}
