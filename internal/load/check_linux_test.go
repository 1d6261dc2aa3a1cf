package load

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// Outcomes of a request, as its caller reports them. Any other is the text of an error.
const (
	outcomeCompleted = "completed"
	outcomeWindow    = "window full"
	outcomeClosed    = "closed"
	outcomeAborted   = "aborted"
	outcomeDeadline  = "deadline"
)

// allows lists the outcomes that a plan allows. A request may complete before it is closed or aborted.
func (c *cell) allows(p *plan) []string {
	all := []string{outcomeCompleted}
	switch p.End {
	case endClose:
		all = append(all, outcomeClosed)
	case endAbort:
		all = append(all, outcomeAborted)
	case endDeadline:
		all = append(all, outcomeDeadline)
	}
	if c[dimPolicy] == policyFail || c[dimPolicy] == policyFailInput {
		all = append(all, outcomeWindow)
	}
	return all
}

// A checker has the requests of a cell, and checks the reports of callers.
type checker struct {
	cell  *cell
	plans []plan
	state []requestState
	open  int
	ended int
	count map[string]int // of outcomes

	quickLeft int // requests that go only to the quick branch and have not ended
}

type requestState int

const (
	planned requestState = iota
	opened
	requestEnded
)

func newChecker(c *cell, plans []plan) *checker {
	k := &checker{cell: c, plans: plans, state: make([]requestState, len(plans)), count: make(map[string]int)}
	for i := range plans {
		if plans[i].quick() {
			k.quickLeft++
		}
	}
	return k
}

// beginRequest records that a caller begins a request.
func (k *checker) beginRequest(number int) error {
	if number < 0 || number >= len(k.plans) || k.state[number] != planned {
		return fmt.Errorf("request %d begins, but is not in the cell, or began before", number)
	}
	k.state[number] = opened
	k.open++
	return nil
}

// endRequest checks the outcome of a request, and the checksums of its results.
func (k *checker) endRequest(number int, outcome string, sums []uint32) error {
	if number < 0 || number >= len(k.plans) || k.state[number] != opened {
		return fmt.Errorf("request %d ends, but was not open: it ended twice, or never began", number)
	}
	k.state[number] = requestEnded
	k.open--
	k.ended++
	k.count[outcome]++
	p := &k.plans[number]
	if p.quick() {
		k.quickLeft--
	}
	if allowed := k.cell.allows(p); !slices.Contains(allowed, outcome) {
		return fmt.Errorf("request %d ended with %q instead of one of %q: %+v", number, outcome, allowed, *p)
	}
	if err := k.cell.checkResults(p, sums, outcome == outcomeCompleted); err != nil {
		return fmt.Errorf("request %d, %s: %w: %+v", number, outcome, err, *p)
	}
	return nil
}

// waiting lists the requests that are open.
func (k *checker) waiting() (all []plan) {
	for i, s := range k.state {
		if s == opened {
			all = append(all, k.plans[i])
		}
	}
	return all
}

var errResults = errors.New("wrong results")

// checkResults compares the checksums of results with those of the results that the pipeline
// computes. A request that did not complete may have a part of them.
func (c *cell) checkResults(p *plan, sums []uint32, complete bool) error {
	var want []uint32
	for _, h := range c.results(p) {
		want = append(want, h.sum())
	}
	drops := c[dimPolicy] == policyDrop
	switch {
	case c.scattered(), len(c.branchesOf(p.Tag)) > 1: // in any order
		left := slices.Clone(want)
		for i, s := range sums {
			at := slices.Index(left, s)
			if at < 0 {
				return fmt.Errorf("%w: result %d is not among the remaining ones of %d", errResults, i, len(want))
			}
			left = slices.Delete(left, at, at+1)
		}
	case drops:
		from := 0
		for i, s := range sums {
			at := slices.Index(want[from:], s)
			if at < 0 {
				return fmt.Errorf("%w: result %d is not among those from index %d of %d", errResults, i, from, len(want))
			}
			from += at + 1
		}
		if complete && from != len(want) {
			return fmt.Errorf("%w: the last of a stream was dropped", errResults)
		}
	default:
		if len(sums) > len(want) || !slices.Equal(sums, want[:len(sums)]) {
			return fmt.Errorf("%w: %d results, which are not the first ones of %d", errResults, len(sums), len(want))
		}
	}
	if complete && !drops && len(sums) != len(want) {
		return fmt.Errorf("%w: %d of %d results", errResults, len(sums), len(want))
	}
	return nil
}

// TestCheckResults: each kind of wrong results is detected.
func TestCheckResults(t *testing.T) {
	plain := cell{dimStream: streamSeveral, dimPolicy: policyBlock, dimRouting: routingSticky, dimSecond: kindNode}
	drop, scattered := plain, plain
	drop[dimPolicy], scattered[dimRouting] = policyDrop, routingRoundRobin
	p := plan{Tag: 3, Inputs: 2, Total: 100}
	var good []uint32
	for _, h := range plain.results(&p) {
		good = append(good, h.sum())
	}
	swapped := slices.Clone(good)
	swapped[0], swapped[1] = swapped[1], swapped[0]
	changed := slices.Clone(good)
	changed[2]++
	for _, test := range []struct {
		name     string
		cell     *cell
		sums     []uint32
		complete bool
		ok       bool
	}{
		{"all", &plain, good, true, true},
		{"all with drops", &drop, good, true, true},
		{"all in any order", &scattered, swapped, true, true},
		{"some, not complete", &plain, good[:3], false, true},
		{"some dropped", &drop, good[2:], true, true},
		{"none, not complete", &drop, nil, false, true},
		{"swallowed", &plain, good[1:], true, false},
		{"the last swallowed", &plain, good[:5], true, false},
		{"swallowed in any order", &scattered, good[1:], true, false},
		{"the last dropped", &drop, good[:5], true, false},
		{"doubled", &plain, append(slices.Clone(good), good[5]), true, false},
		{"doubled with drops", &drop, append(slices.Clone(good), good[5]), true, false},
		{"doubled in any order", &scattered, append(slices.Clone(good), good[5]), true, false},
		{"changed", &plain, changed, true, false},
		{"changed with drops", &drop, changed, true, false},
		{"changed in any order", &scattered, changed, true, false},
		{"swapped", &plain, swapped, true, false},
		{"swapped with drops", &drop, swapped, true, false},
		{"changed, not complete", &plain, changed[:4], false, false},
	} {
		if err := test.cell.checkResults(&p, test.sums, test.complete); (err == nil) != test.ok {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestCheckBranches: the results of a request that goes to two branches are in any order, those of
// one branch in order.
func TestCheckBranches(t *testing.T) {
	c := cell{
		dimShape: shapeTextFirst, dimSecond: kindNode, dimRouting: routingSticky, dimPolicy: policyBlock,
		dimStream: streamSingle,
	}
	for _, test := range []struct {
		route, results int
		turned         bool // whether they are right in reverse order
	}{{routeSlow, 2, false}, {routeQuick, 2, false}, {routeSlowFirst, 4, true}, {routeQuickFirst, 4, true}} {
		p := plan{Tag: uint64(test.route) << numberBits, Inputs: 2, Total: 100}
		var sums []uint32
		for _, h := range c.results(&p) {
			sums = append(sums, h.sum())
		}
		if err := c.checkResults(&p, sums, true); err != nil || len(sums) != test.results {
			t.Errorf("route %d: %d results, %v", test.route, len(sums), err)
		}
		if c.checkResults(&p, sums[1:], true) == nil {
			t.Errorf("route %d: a missing result is not detected", test.route)
		}
		slices.Reverse(sums)
		if err := c.checkResults(&p, sums, true); (err == nil) != test.turned {
			t.Errorf("route %d, reversed: %v", test.route, err)
		}
	}
}

// TestCheckEnds: a request ends once, with an outcome that its plan allows.
func TestCheckEnds(t *testing.T) {
	c := cell{dimStream: streamSingle, dimPolicy: policyBlock, dimRouting: routingSticky, dimSecond: kindNode}
	k := newChecker(&c, []plan{
		{Number: 0, Inputs: 1, Total: 64, End: endComplete},
		{Number: 1, Inputs: 1, Total: 64, End: endAbort},
	})
	if k.endRequest(0, outcomeCompleted, nil) == nil {
		t.Error("the end of a request that never began is not detected")
	}
	for i := range 2 {
		if err := k.beginRequest(i); err != nil {
			t.Fatal(err)
		}
	}
	if k.beginRequest(1) == nil || k.beginRequest(2) == nil {
		t.Error("a second begin, or a request that is not in the cell, is not detected")
	}
	if k.endRequest(0, outcomeAborted, nil) == nil {
		t.Error("a request is aborted that was to complete")
	}
	if len(k.waiting()) != 1 {
		t.Errorf("%v wait", k.waiting())
	}
	if err := k.endRequest(1, outcomeAborted, nil); err != nil {
		t.Error(err)
	}
	if k.endRequest(1, outcomeAborted, nil) == nil {
		t.Error("a request ends twice")
	}
}
