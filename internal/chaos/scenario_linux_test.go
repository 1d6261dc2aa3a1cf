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

// scenario is what a run puts on: which processes take part, in what pipeline, and
// what a request is.
type scenario struct {
	roles      []role
	pipeline  bus.Pipeline
	options   bus.Options
	roundTrip func(ctx context.Context, s submitter, tag uint32, i int) error
	// mayFail says that a request may fail with a process that worked for it.
	mayFail bool
	hostRequests    int // requests at a time that the host submits
	// maxPause is the longest pause between two kills.
	maxPause time.Duration
	join   node.JoinOptions
}

// playEnv tells a process which play it takes part in.
const scenarioEnv = "OMNIBUS_CHAOS_SCENARIO"

// plays are all of them, by name.
var scenarios = map[string]func() scenario{
	"":              relayed,
	"direct":        func() scenario { return direct(false) },
	"direct python": func() scenario { return direct(true) },
	"drops":         func() scenario { return drops(bus.StateRequest) },
	"drops again":   func() scenario { return drops(bus.StateNone) },
	"gpu":           gpuScenario,
}

// currentScenario is the one that this process takes part in.
func currentScenario() scenario { return scenarios[os.Getenv(scenarioEnv)]() }

// named says of each role which play it is in.
func (p scenario) named(name string) scenario {
	for i, r := range p.roles {
		p.roles[i].env = slices.Concat(r.env, []string{scenarioEnv + "=" + name})
	}
	return p
}

// relayed is the play in which the host sees every delivery, and no request
// fails.
func relayed() scenario {
	return scenario{
		roles: relayedRoles(), pipeline: pipeline(), options: busOptions(), hostRequests: ownSubmitters, maxPause: maxKillPause,
		roundTrip: func(ctx context.Context, s submitter, tag uint32, i int) error {
			return roundTrip(ctx, s, tag, 1+i%maxInputs)
		},
	}
}

// died reports whether a request ended because a process did.
func died(err error) bool {
	return err != nil && !errors.Is(err, errBroken) && !errors.Is(err, bus.ErrHostGone)
}
