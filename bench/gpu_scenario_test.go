package bench

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A fake is a trial that records its calls.
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

// TestRunScenarios checks that matching scenarios are measured, and that a scenario without enough
// memory is skipped by name.
func TestRunScenarios(t *testing.T) {
	small, large := new(fake).scenario(1), new(fake).scenario(1)
	small.name, large.name, large.needs = "small", "large", MinStoreBytes+1
	var progress []Progress
	report, err := run(t.Context(), Options{
		Quick:      true,
		StoreBytes: MinStoreBytes,
		Match:      regexp.MustCompile("^small/b$|^large"),
		Progress:   func(p Progress) { progress = append(progress, p) },
	}, []scenario{small, large, new(fake).scenario(1)})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Progress{{"small", 1, 2}, {"large", 2, 2}}, progress); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	want := Report{
		Machine: thisMachine(), Quick: true,
		Results: []Result{{Name: "small/b", Value: 3, Unit: "ns", Rounds: 1}},
		Skipped: []Skip{{"large", "needs a store of 1048577 bytes"}},
	}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRunScenariosRefuses(t *testing.T) {
	if _, err := run(t.Context(), Options{StoreBytes: MinStoreBytes - 1}, nil); !errors.Is(err, ErrOptions) {
		t.Errorf("a small store: %v", err)
	}
	if _, err := run(t.Context(), Options{Match: regexp.MustCompile("^nothing$")}, []scenario{new(fake).scenario(1)}); !errors.Is(err, ErrNoMatch) {
		t.Errorf("a pattern that matches no name: %v", err)
	}
}

// TestMeasureBoth checks which side runs first, and that an error names the baseline.
func TestMeasureBoth(t *testing.T) {
	var order []string
	ours := func() error { order = append(order, "ours"); return nil }
	baseline := func() error { order = append(order, "baseline"); return nil }
	for _, swapped := range []bool{false, true} {
		order = nil
		if _, _, err := measureBoth(swapped, ours, baseline); err != nil {
			t.Fatal(err)
		}
		want := []string{"ours", "baseline"}
		if swapped {
			slices.Reverse(want)
		}
		if !slices.Equal(order, want) {
			t.Errorf("swapped %v: %v ran, want %v", swapped, order, want)
		}
	}

	broken := errors.New("broken")
	failing := func() error { return broken }
	for _, swapped := range []bool{false, true} {
		if _, _, err := measureBoth(swapped, failing, baseline); !errors.Is(err, broken) {
			t.Errorf("ours broke, swapped %v: %v", swapped, err)
		}
		if _, _, err := measureBoth(swapped, ours, failing); !errors.Is(err, broken) || err.Error() != "baseline: broken" {
			t.Errorf("the baseline broke, swapped %v: %v", swapped, err)
		}
	}
}
