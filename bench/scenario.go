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

// microsPer is the time of one of n operations, in microseconds.
func microsPer(took time.Duration, n int) float64 {
	return float64(took.Nanoseconds()) / float64(n) / 1000
}

// measure runs f after a garbage collection, so that garbage of an earlier side is no part
// of the time.
func measure(f func() error) (time.Duration, error) {
	runtime.GC()
	start := time.Now()
	err := f()
	return time.Since(start), err
}

// measureBoth measures ours and the baseline; swapped, the baseline goes first.
func measureBoth(swapped bool, ours, baseline func() error) (our, base time.Duration, err error) {
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
