package bench

import (
	"context"
	"errors"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A fake is a trial that notes what is done with it.
type fake struct {
	swaps  []bool
	closed int
	fail   error // in the round after two
	after  func()
}

func (f *fake) round(_ context.Context, swapped bool) ([]sample, error) {
	f.swaps = append(f.swaps, swapped)
	if f.after != nil {
		f.after()
	}
	if len(f.swaps) > 2 {
		return nil, f.fail
	}
	return []sample{{1, 2}, {ours: 3}}, nil
}

func (f *fake) close(ctx context.Context) error {
	f.closed++
	return ctx.Err()
}

func (f *fake) scenario(rounds int) scenario {
	return scenario{
		name:    "fake",
		metrics: []metric{{name: "a", unit: "ns"}, {name: "b", unit: "ns"}},
		rounds:  rounds,
		open:    func(context.Context, Options) (trial, error) { return f, nil },
	}
}

func TestRounds(t *testing.T) {
	f := &fake{}
	rounds, err := f.scenario(2).measure(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if want := [][]sample{{{1, 2}, {ours: 3}}, {{1, 2}, {ours: 3}}}; !slices.EqualFunc(want, rounds, slices.Equal) {
		t.Errorf("got %v, want %v", rounds, want)
	}
	if want := []bool{false, true}; !slices.Equal(f.swaps, want) {
		t.Errorf("swapped %v, want %v", f.swaps, want)
	}
	if f.closed != 1 {
		t.Errorf("closed %d times", f.closed)
	}
}

// TestTrials checks that a scenario is set up anew for each trial, and that the rounds of all count.
func TestTrials(t *testing.T) {
	var trials []*fake
	s := (&fake{}).scenario(2)
	s.trials = 3
	s.open = func(context.Context, Options) (trial, error) {
		trials = append(trials, &fake{})
		return trials[len(trials)-1], nil
	}
	rounds, err := s.measure(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(trials) != 3 || len(rounds) != 6 {
		t.Errorf("%d trials with %d rounds, want 3 with 6", len(trials), len(rounds))
	}
	for i, f := range trials {
		if f.closed != 1 || len(f.swaps) != 2 {
			t.Errorf("trial %d: closed %d times after %d rounds, want once after 2", i, f.closed, len(f.swaps))
		}
	}
}

// TestWarmUp checks that the first round is not counted, and that there are not
// more than maxRounds, however fast they are.
func TestWarmUp(t *testing.T) {
	f := &fake{}
	rounds, err := f.scenario(0).measure(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(rounds) != maxRounds || len(f.swaps) != maxRounds+1 {
		t.Errorf("%d rounds of %d count, want %d of %d", len(rounds), len(f.swaps), maxRounds, maxRounds+1)
	}
}

func TestBrokenScenario(t *testing.T) {
	broken := errors.New("broken")
	f := &fake{fail: broken}
	if _, err := f.scenario(5).measure(t.Context(), Options{}); !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "round 3: ") {
		t.Errorf("got %v", err)
	}
	if f.closed != 1 {
		t.Errorf("closed %d times", f.closed)
	}
}

// TestInterrupted checks that no round begins after the context has ended, and
// that the trial is closed under one that has not.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fake{after: cancel}
	_, err := f.scenario(5).measure(ctx, Options{})
	if !errors.Is(err, context.Canceled) || len(f.swaps) != 1 || f.closed != 1 {
		t.Errorf("after %d rounds and closed %d times: %v", len(f.swaps), f.closed, err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("closing failed, too: %v", err)
	}
}

func TestResultsThatMatch(t *testing.T) {
	s := new(fake).scenario(1)
	got := s.results([][]sample{{{1, 2}, {ours: 3}}}, Options{Match: regexp.MustCompile("b$")})
	want := []Result{{Name: "fake/b", Value: 3, Unit: "ns", Rounds: 1}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRun(t *testing.T) {
	var progress []Progress
	report, err := Run(t.Context(), Options{
		Quick:      true,
		StoreBytes: MinStoreBytes,
		Match:      regexp.MustCompile("^mailbox/senders=1$|^store/copy|^store/zero-copy/size=64B/readers=8/allocs$"),
		Progress:   func(p Progress) { progress = append(progress, p) },
	})
	if err != nil {
		t.Fatal(err)
	}
	wantProgress := []Progress{
		{"store/zero-copy/size=64B/readers=8", 1, 4},
		{"store/copy/size=1MiB", 2, 4},
		{"store/copy/size=64MiB", 3, 4},
		{"mailbox/senders=1", 4, 4},
	}
	if diff := cmp.Diff(wantProgress, progress); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	var names []string
	for _, r := range report.Results {
		names = append(names, r.Name)
	}
	if diff := cmp.Diff([]string{"store/zero-copy/size=64B/readers=8/allocs", "mailbox/senders=1"}, names); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	wantSkipped := []Skip{
		{"store/copy/size=1MiB", "needs a store of 4194560 bytes"},
		{"store/copy/size=64MiB", "needs a store of 268435712 bytes"},
	}
	if diff := cmp.Diff(wantSkipped, report.Skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
	if report.Machine != thisMachine() || !report.Quick {
		t.Errorf("got %+v, quick %v", report.Machine, report.Quick)
	}
}

func TestRunRefuses(t *testing.T) {
	if _, err := Run(t.Context(), Options{StoreBytes: MinStoreBytes - 1}); !errors.Is(err, ErrOptions) {
		t.Errorf("a small store: %v", err)
	}
	if _, err := Run(t.Context(), Options{Match: regexp.MustCompile("^nothing$")}); !errors.Is(err, ErrNoMatch) {
		t.Errorf("a match for nothing: %v", err)
	}
}

// TestNames checks that figures can be told apart, and chosen by their names.
func TestNames(t *testing.T) {
	names := slices.Concat(Names(), NamesIPC(), NamesPeers())
	for i, name := range names {
		if slices.Index(names, name) != i {
			t.Errorf("%s is there twice", name)
		}
		if strings.ContainsAny(name, " \t") || regexp.QuoteMeta(name) != name {
			t.Errorf("%q is no name to type into a shell and a regular expression", name)
		}
	}
}

// TestEveryScenario runs one round of each, swapped, and the short ones only
// when time is short.
func TestEveryScenario(t *testing.T) {
	for _, s := range slices.Concat(scenarios(), ipcScenarios()) {
		t.Run(s.name, func(t *testing.T) {
			if testing.Short() && s.needs > 16*mib {
				t.Skipf("needs a store of %d bytes", s.needs)
			}
			opts := Options{Quick: true, StoreBytes: max(s.needs, MinStoreBytes), Peer: testPeer}.withDefaults()
			trial, err := s.open(t.Context(), opts)
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := trial.close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}()
			switch trial := trial.(type) {
			case *idleTrial:
				trial.wait = time.Millisecond
			case *growthTrial:
				trial.requests = 2
			}
			round, err := trial.round(t.Context(), true)
			if errors.Is(err, errors.ErrUnsupported) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			checkRound(t, s, round)
		})
	}
}

// checkRound looks for what no machine can measure.
func checkRound(t *testing.T, s scenario, round []sample) {
	t.Helper()
	if len(round) != len(s.metrics) {
		t.Fatalf("%d samples for %d metrics", len(round), len(s.metrics))
	}
	for i, m := range s.metrics {
		got := round[i]
		if math.IsNaN(got.ours) || math.IsInf(got.ours, 0) {
			t.Errorf("%s: %v", m.name, got.ours)
		}
		timed := m.unit == "ns" || m.unit == "µs"
		if timed && (got.ours <= 0 || got.baseline <= 0) {
			t.Errorf("%s took %v, and the baseline %v", m.name, got.ours, got.baseline)
		}
		if m.target.of != ofNothing && m.target.of != ofValue && got.baseline == 0 {
			t.Errorf("%s has a target for its ratio and no baseline", m.name)
		}
	}
}
