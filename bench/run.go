package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"
)

// Bounds of Options.StoreBytes. The default leaves room for four of the largest
// objects.
const (
	MinStoreBytes     = 1 * mib
	DefaultStoreBytes = 257 * mib
)

// MaxBusy bounds Options.Busy.
const MaxBusy = 1024

// The rounds of a scenario: as many as fit its time, within bounds.
const (
	minRounds = 5
	maxRounds = 101

	roundsTime      = 3 * time.Second
	quickRoundsTime = 300 * time.Millisecond
)

var (
	// ErrOptions reports options that Run refuses.
	ErrOptions = errors.New("bench: invalid options")
	// ErrNoMatch reports an Options.Match that no figure has.
	ErrNoMatch = errors.New("bench: nothing matches")
)

// Options choose what is measured, and for how long. The zero value works.
type Options struct {
	// Quick measures fewer rounds: for a first impression, not for a record.
	Quick bool
	// Match chooses figures by their names; nil means all.
	Match *regexp.Regexp
	// StoreBytes is the size of the largest stores, and of the memory that
	// their baselines copy to. Default 257 MiB. Scenarios that need more than
	// they get are skipped.
	StoreBytes int64
	// Peer is the command line with which this program calls [Peer]; what the
	// peer is to do is appended as one argument. RunIPC needs it, and so does RunGPU.
	Peer []string
	// Busy is how many processes compute beside what is measured, for as long as it is: with
	// one for each core, as users' stages do. They need Peer. Results are then means of all
	// rounds: what waits for a processor is a part of the cost, however seldom.
	Busy int
	// Driver is the one that RunGPU measures: DriverEmul, which is the default, or DriverCUDA.
	Driver string
	// Rounds and Slice are how often Run measures each of those who do the work, and for
	// how long at a time. Default 9, and 200 ms.
	Rounds int
	Slice  time.Duration
	// Progress, when set, is told of each scenario before it starts.
	Progress func(Progress)
}

// Progress says which scenario starts.
type Progress struct {
	Scenario string
	Number   int // from 1
	Of       int
}

func (o Options) withDefaults() Options {
	if o.StoreBytes == 0 {
		o.StoreBytes = DefaultStoreBytes
	}
	if o.Driver == "" {
		o.Driver = DriverEmul
	}
	if o.Rounds == 0 {
		o.Rounds = DefaultRounds
	}
	if o.Slice == 0 {
		o.Slice = DefaultSlice
	}
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	return o
}

// Validate reports whether Run would refuse the size of the store, or Busy, or Run
// the rounds; the other options are looked at by those that they are for.
func (o Options) Validate() error {
	if o = o.withDefaults(); o.StoreBytes < MinStoreBytes {
		return fmt.Errorf("%w: a store of %d bytes: use at least %d", ErrOptions, o.StoreBytes, MinStoreBytes)
	}
	if o.Busy < 0 || o.Busy > MaxBusy {
		return fmt.Errorf("%w: %d processes that compute: use 0 to %d", ErrOptions, o.Busy, MaxBusy)
	}
	if o.Rounds < 1 || o.Rounds > MaxRounds {
		return fmt.Errorf("%w: %d rounds: use 1 to %d", ErrOptions, o.Rounds, MaxRounds)
	}
	if o.Slice < 0 || o.Slice > MaxSlice {
		return fmt.Errorf("%w: slices of %v: use up to %v", ErrOptions, o.Slice, MaxSlice)
	}
	return nil
}

// roundsTime is the time that the rounds of one scenario may take.
func (o Options) roundsTime() time.Duration {
	if o.Quick {
		return quickRoundsTime
	}
	return roundsTime
}

// NamesIPC lists the names of all figures of RunIPC.
func NamesIPC() []string { return namesOf(ipcScenarios()) }

func namesOf(all []scenario) []string {
	var names []string
	for _, s := range all {
		for _, m := range s.metrics {
			names = append(names, s.resultName(m))
		}
	}
	return names
}

// RunIPC is RunGPU for payloads that go to another process.
func RunIPC(ctx context.Context, opts Options) (Report, error) {
	return run(ctx, opts, ipcScenarios())
}

// Peer is the other process of RunIPC. The description is the last argument of
// the command line. It runs until standard input ends.
func Peer(ctx context.Context, description string, stdin io.Reader) error {
	var spec peerSpec
	if err := json.Unmarshal([]byte(description), &spec); err != nil {
		return fmt.Errorf("bench: a peer without a description of what to do: %w", err)
	}
	if err := runPeer(ctx, spec, stdin); err != nil {
		return fmt.Errorf("bench: peer by %s: %w", spec.Carrier, err)
	}
	return nil
}

// run measures on a goroutine of its own: what takes some tens of nanoseconds depends on
// where in cache lines its stack lies, and so on how deep the caller's is.
func run(ctx context.Context, opts Options, all []scenario) (report Report, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		report, err = runAll(ctx, opts, all)
	}()
	<-done
	return report, err
}

func runAll(ctx context.Context, opts Options, all []scenario) (report Report, err error) {
	report = Report{Machine: thisMachine(), Quick: opts.Quick, Busy: opts.Busy, Results: []Result{}, Skipped: []Skip{}}
	if err := opts.Validate(); err != nil {
		return report, err
	}
	opts = opts.withDefaults()
	chosen := choose(all, opts.Match)
	if len(chosen) == 0 {
		return report, fmt.Errorf("%w %q", ErrNoMatch, opts.Match)
	}
	idle, err := compute(ctx, opts)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, idle()) }()
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

func matches(match *regexp.Regexp, name string) bool { return match == nil || match.MatchString(name) }

// measure runs all trials of a scenario and returns the samples of their rounds.
func (s scenario) measure(ctx context.Context, opts Options) (rounds [][]sample, err error) {
	for range max(s.trials, 1) {
		more, err := s.try(ctx, opts)
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, more...)
	}
	return rounds, nil
}

// try sets a scenario up once, and runs all rounds.
func (s scenario) try(ctx context.Context, opts Options) (rounds [][]sample, err error) {
	t, err := s.open(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	defer func() {
		// The trial is cleared away also when the context has ended.
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
			results = append(results, summarise(name, m, column(rounds, i), opts.Busy > 0))
		}
	}
	return results
}

// column takes the samples of one metric out of those of all.
func column(rounds [][]sample, metric int) []sample {
	var samples []sample
	for _, round := range rounds {
		samples = append(samples, round[metric])
	}
	return samples
}
