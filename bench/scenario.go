package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"
)

// Sizes in bytes.
const (
	kib = 1 << 10
	mib = 1 << 20
)

// stages is the length of the pipelines that are measured.
const stages = 4

// A scenario measures one thing, in one or several figures.
type scenario struct {
	name    string
	metrics []metric
	// needs is the smallest Options.StoreBytes it can run with.
	needs int64
	// rounds, when set, is how often it is measured, without warming up;
	// otherwise that depends on the time it takes.
	rounds int
	// trials, when set, is how many times it is set up and measured, with other processes each
	// time: where one slice decides, the best of either side has to be among them.
	trials int
	open   func(context.Context, Options) (trial, error)
}

// A trial is a scenario that is set up.
type trial interface {
	// round measures once and returns a sample for each metric of the
	// scenario, in their order. Swapped, the baseline goes first.
	round(ctx context.Context, swapped bool) ([]sample, error)
	close(ctx context.Context) error
}

// A metric is one figure of a scenario.
type metric struct {
	name   string // follows the scenario's; empty for the only one
	unit   string
	target target
	speed  bool // it is compared by its speed, and not by its cost
	best   bool // the best rounds count, and not those in the middle
}

// A sample is what one round says of one metric.
type sample struct {
	ours     float64
	baseline float64 // zero: there is none
}

// A target bounds a figure from above, or a speed from below. The zero value is
// none.
type target struct {
	of quantity
	at float64
}

// A quantity is what a target bounds.
type quantity string

const (
	ofNothing quantity = ""
	ofValue   quantity = "value"
	ofRatio   quantity = "ratio"
	ofSpeed   quantity = "speed" // the baseline's time by ours
)

func valueUpTo(limit float64) target { return target{ofValue, limit} }
func ratioUpTo(limit float64) target { return target{ofRatio, limit} }
func speedOf(times float64) target   { return target{ofSpeed, times} }

// scenarios lists everything, in the order in which it is run and shown.
func scenarios() []scenario {
	var all []scenario
	for _, size := range []int{64, mib} {
		for _, limit := range putLimits {
			all = append(all, putScenario(size, limit))
		}
	}
	for _, size := range []int{mib, 64 * mib} {
		all = append(all, copyScenario(size))
	}
	return append(all,
		sendersScenario(1),
		sendersScenario(4),
		pingPongScenario(),
		streamScenario(),
		forwardScenario(),
		inFlightScenario(),
		idleCPUScenario(),
		growthScenario(),
		footprintScenario(),
	)
}

// resultName is the name under which a metric is reported.
func (s scenario) resultName(m metric) string {
	if m.name == "" {
		return s.name
	}
	return s.name + "/" + m.name
}

// sizeName writes a size the way names of benchmarks do: 64B, 1MiB.
func sizeName(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%dMiB", n/mib)
	case n >= kib:
		return fmt.Sprintf("%dKiB", n/kib)
	}
	return fmt.Sprintf("%dB", n)
}

// A cost is what running something once took.
type cost struct {
	elapsed time.Duration
	mallocs uint64 // heap objects that the process allocated
}

// nsPer is the time of one of n operations, in nanoseconds.
func (c cost) nsPer(n int) float64 { return float64(c.elapsed.Nanoseconds()) / float64(n) }

func (c cost) microsPer(n int) float64 { return c.nsPer(n) / 1000 }

// allocsPer is the allocations of one of n operations.
func (c cost) allocsPer(n int) float64 { return float64(c.mallocs) / float64(n) }

// measure runs f. It collects garbage before, so that nobody pays for what the
// other side left behind.
func measure(f func() error) (cost, error) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := f()
	elapsed := time.Since(start)
	runtime.ReadMemStats(&after)
	return cost{elapsed, after.Mallocs - before.Mallocs}, err
}

// measureBoth measures ours and the baseline; swapped, the baseline goes first.
func measureBoth(swapped bool, ours, baseline func() error) (our, base cost, err error) {
	if swapped {
		if base, err = measure(baseline); err != nil {
			return our, base, fmt.Errorf("baseline: %w", err)
		}
	}
	if our, err = measure(ours); err != nil {
		return our, base, err
	}
	if !swapped {
		if base, err = measure(baseline); err != nil {
			return our, base, fmt.Errorf("baseline: %w", err)
		}
	}
	return our, base, nil
}
