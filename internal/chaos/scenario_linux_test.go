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

// scenario is a run's roles, pipeline and kind of request.
type scenario struct {
	roles     []role
	pipeline  bus.Pipeline
	options   bus.Options
	roundTrip func(ctx context.Context, s submitter, tag uint32, i int) error
	// mayFail says that a request may fail because a process that worked for it died.
	mayFail      bool
	hostRequests int // requests of the host that are in flight at a time
	// maxPause is the longest pause between two kills.
	maxPause time.Duration
	join     node.JoinOptions
}

// scenarioEnv names the scenario of a process.
const scenarioEnv = "OMNIBUS_CHAOS_SCENARIO"

// scenarios are all scenarios, by name.
var scenarios = map[string]func() scenario{
	"":                relayed,
	"direct":          func() scenario { return direct(false) },
	"direct python":   func() scenario { return direct(true) },
	"drops":           func() scenario { return drops(bus.StateRequest) },
	"drops, replayed": func() scenario { return drops(bus.StateNone) },
	"gpu":             gpuScenario,
}

// currentScenario is the scenario of this process.
func currentScenario() scenario { return scenarios[os.Getenv(scenarioEnv)]() }

// named sets scenarioEnv for each role.
func (p scenario) named(name string) scenario {
	for i, r := range p.roles {
		p.roles[i].env = slices.Concat(r.env, []string{scenarioEnv + "=" + name})
	}
	return p
}

// relayed is the scenario in which the host relays every delivery, and no request
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
