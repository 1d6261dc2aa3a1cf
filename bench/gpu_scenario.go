package bench

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"time"
)

// The rounds of a scenario: as many as fit its time, within bounds.
const (
	minRounds = 5
	maxRounds = 101

	roundsTime      = 3 * time.Second
	quickRoundsTime = 300 * time.Millisecond
)

// roundsTime is the time that the rounds of one scenario may take.
func (o Options) roundsTime() time.Duration {
	if o.Quick {
		return quickRoundsTime
	}
	return roundsTime
}

// A scenario measures one or several figures.
type scenario struct {
	name    string
	metrics []metric
	// needs is the smallest Options.StoreBytes it can run with.
	needs int64
	// rounds, when set, is how often it is measured, without warming up;
	// otherwise that depends on the time it takes.
	rounds int
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
	speed  bool // the best rounds count, compared as baseline / ours; otherwise the median
}

// A sample is the figure of one metric in one round.
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

// A quantity names the figure that a target bounds.
type quantity string

const (
	ofNothing quantity = ""
	ofValue   quantity = "value"
	ofSpeed   quantity = "speed" // the baseline's time divided by ours
)

func valueUpTo(limit float64) target { return target{ofValue, limit} }
func speedOf(times float64) target   { return target{ofSpeed, times} }

// resultName is the name under which a metric is reported.
func (s scenario) resultName(m metric) string {
	if m.name == "" {
		return s.name
	}
	return s.name + "/" + m.name
}

// microsPer is the time of one of n operations, in microseconds.
func microsPer(took time.Duration, n int) float64 {
	return float64(took.Nanoseconds()) / float64(n) / 1000
}

// measure runs f after a garbage collection, so that the time does not include the garbage of an
// earlier side.
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

func namesOf(all []scenario) []string {
	var names []string
	for _, s := range all {
		for _, m := range s.metrics {
			names = append(names, s.resultName(m))
		}
	}
	return names
}

// run measures the figures that the options choose, one scenario after the other.
func run(ctx context.Context, opts Options, all []scenario) (report Report, err error) {
	report = Report{Machine: thisMachine(), Quick: opts.Quick, Results: []Result{}, Skipped: []Skip{}}
	if err := opts.Validate(); err != nil {
		return report, err
	}
	opts = opts.withDefaults()
	chosen := choose(all, opts.Match)
	if len(chosen) == 0 {
		return report, fmt.Errorf("%w %q", ErrNoMatch, opts.Match)
	}
	for i, s := range chosen {
		opts.Progress(Progress{s.name, i + 1, len(chosen)})
		if s.needs > opts.StoreBytes {
			report.Skipped = append(report.Skipped, Skip{s.name, fmt.Sprintf("needs a store of %d bytes", s.needs)})
			continue
		}
		samples, err := s.measure(ctx, opts)
		switch {
		case errors.Is(err, errors.ErrUnsupported):
			report.Skipped = append(report.Skipped, Skip{s.name, err.Error()})
		case err != nil:
			return report, fmt.Errorf("%s: %w", s.name, err)
		default:
			report.Results = append(report.Results, s.results(samples, opts)...)
		}
	}
	return report, nil
}

// choose returns the scenarios that have a figure whose name matches.
func choose(all []scenario, match *regexp.Regexp) []scenario {
	var chosen []scenario
	for _, s := range all {
		for _, m := range s.metrics {
			if matches(match, s.resultName(m)) {
				chosen = append(chosen, s)
				break
			}
		}
	}
	return chosen
}

// measure sets a scenario up, and runs all rounds.
func (s scenario) measure(ctx context.Context, opts Options) (rounds [][]sample, err error) {
	t, err := s.open(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	defer func() {
		// The trial is closed also when the context has ended.
		err = errors.Join(err, t.close(context.WithoutCancel(ctx)))
	}()
	least, most := minRounds, maxRounds
	if s.rounds > 0 {
		least, most = s.rounds, s.rounds
	} else if _, err := t.round(ctx, false); err != nil {
		return nil, fmt.Errorf("warm up: %w", err)
	}
	start := time.Now()
	for i := range most {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if i >= least && time.Since(start) > opts.roundsTime() {
			break
		}
		round, err := t.round(ctx, i%2 == 1)
		if err != nil {
			return nil, fmt.Errorf("round %d: %w", i+1, err)
		}
		rounds = append(rounds, round)
	}
	return rounds, nil
}

// results summarises the samples of all rounds, for the figures that match.
func (s scenario) results(rounds [][]sample, opts Options) []Result {
	var results []Result
	for i, m := range s.metrics {
		if name := s.resultName(m); matches(opts.Match, name) {
			results = append(results, summarise(name, m, column(rounds, i)))
		}
	}
	return results
}

// column returns the samples of one metric.
func column(rounds [][]sample, metric int) []sample {
	var samples []sample
	for _, round := range rounds {
		samples = append(samples, round[metric])
	}
	return samples
}
