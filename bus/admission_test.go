package bus

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestAdmissionAgainstModel: requests ask for slots, release them, skip stages and end, in any order. Each stage then
// has the holders and the waits of a model that finds cycles by trying all sets of stages.
func TestAdmissionAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawAdmission(rt)
		for range rapid.IntRange(20, 80).Draw(rt, "steps") {
			m.step(rt)
			m.check(rt)
		}
	})
}

// modelRequests is the largest number of requests.
const modelRequests = 6

// admissionModel is an admission and its expected state.
type admissionModel struct {
	bus      *Bus
	requests []*Request
	stays    [][]stay // by request and stage
	bounds   []int    // of the stages
	above    []int64  // slots granted above the bounds
	served   uint64
	grants   []string // all grants so far, for reports
}

func drawAdmission(t *rapid.T) *admissionModel {
	m := &admissionModel{bus: &Bus{}}
	a := &m.bus.admission
	for i := range rapid.IntRange(3, 5).Draw(t, "stages") {
		bound := rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "bound")
		st := &stage{index: i, spec: StageSpec{Replicas: 1, MaxInflight: bound}}
		for n := range modelRequests { // with those above the bound, so that none has to be made
			s := &slot{&worker{}, n >= bound}
			idle := st.idleSlots(s.above)
			*idle = append(*idle, s)
		}
		a.stages = append(a.stages, st)
		m.bounds = append(m.bounds, bound)
	}
	m.above = make([]int64, len(a.stages))
	for i := range rapid.IntRange(2, modelRequests).Draw(t, "requests") {
		r := &Request{bus: m.bus, key: uint64(i), order: uint64(rapid.IntRange(1, 4).Draw(t, "order")), tasks: make([]Task, len(a.stages))}
		r.refs.Store(1) // the caller's
		for at, st := range a.stages {
			r.tasks[at].stage = st
			r.tasks[at].outputs = outputs{req: r, task: &r.tasks[at]}
		}
		m.requests = append(m.requests, r)
		m.stays = append(m.stays, make([]stay, len(a.stages)))
	}
	return m
}

// step does one operation. Most often a request asks for another slot, since cycles are rare.
func (m *admissionModel) step(t *rapid.T) {
	const wants = 12
	switch n := rapid.IntRange(0, wants+6).Draw(t, "step"); {
	case n < wants:
		m.want(t, stayNone)
	case n == wants:
		m.want(t, stayWaiting, stayHolding, stayLeft)
	case n <= wants+3:
		m.give(t)
	case n == wants+4:
		m.skip(t)
	case n == wants+5:
		m.end(t)
	default:
		m.withdraw(t)
	}
}

// task draws a request and a stage with one of the given stays. It reports false when there is none.
func (m *admissionModel) task(t *rapid.T, stays ...stay) (r, s int, ok bool) {
	var all [][2]int
	for r := range m.requests {
		for s := range m.bounds {
			if slices.Contains(stays, m.stays[r][s]) {
				all = append(all, [2]int{r, s})
			}
		}
	}
	if len(all) == 0 {
		return 0, 0, false
	}
	i := rapid.IntRange(0, len(all)-1).Draw(t, "task")
	return all[i][0], all[i][1], true
}

func (m *admissionModel) want(t *rapid.T, stays ...stay) {
	r, s, ok := m.task(t, stays...)
	if !ok {
		return
	}
	m.requests[r].wantSlot(&m.requests[r].tasks[s])
	if m.stays[r][s] == stayNone && !m.requests[r].over() {
		m.stays[r][s] = stayWaiting
		m.settle(s)
	}
}

func (m *admissionModel) give(t *rapid.T) {
	if r, s, ok := m.task(t, stayHolding); ok {
		m.requests[r].releaseSlot(&m.requests[r].tasks[s])
		m.stays[r][s] = stayLeft
		m.settle(s)
	}
}

func (m *admissionModel) skip(t *rapid.T) {
	r, s, ok := m.task(t, stayNone, stayWaiting, stayHolding, stayLeft)
	if !ok {
		return
	}
	skipped := m.bus.admission.skip(&m.requests[r].tasks[s])
	if want := m.stays[r][s] == stayNone || m.stays[r][s] == stayWaiting; skipped != want {
		t.Fatalf("skip of request %d at stage %d, where it stays %d: %v", r, s, m.stays[r][s], skipped)
	}
	if skipped {
		m.stays[r][s] = stayLeft
	}
}

// end is the first step of a request's end; withdraw is the second.
func (m *admissionModel) end(t *rapid.T) {
	rapid.SampledFrom(m.requests).Draw(t, "request").outcome.Store(uint32(Aborted))
}

func (m *admissionModel) withdraw(t *rapid.T) {
	r := rapid.IntRange(0, len(m.requests)-1).Draw(t, "request")
	if !m.requests[r].over() {
		return
	}
	m.bus.admission.withdraw(m.requests[r])
	for s, stay := range m.stays[r] {
		if stay == stayWaiting {
			m.stays[r][s] = stayLeft
		}
	}
}

// at returns the requests with the given stay at a stage, the oldest first.
func (m *admissionModel) at(s int, stay stay) (all []int) {
	for r := range m.requests {
		if m.stays[r][s] == stay {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, m.age)
	return all
}

// age orders requests, the oldest first.
func (m *admissionModel) age(a, b int) int {
	x, y := m.requests[a], m.requests[b]
	return cmp.Or(cmp.Compare(x.order, y.order), cmp.Compare(x.key, y.key))
}

func (m *admissionModel) grant(r, s int) {
	m.stays[r][s] = stayHolding
	m.served = max(m.served, m.requests[r].order)
	m.grants = append(m.grants, fmt.Sprintf("%d at %d", r, s))
}

// settle grants free slots of a stage, and slots that break cycles.
func (m *admissionModel) settle(s int) {
	for _, r := range m.at(s, stayWaiting) {
		switch {
		case len(m.at(s, stayHolding)) >= m.bounds[s]:
		case m.requests[r].over():
			m.stays[r][s] = stayLeft
		default:
			m.grant(r, s)
		}
	}
	for {
		cycle := m.cycle()
		if len(cycle) == 0 {
			return
		}
		oldest := [2]int{-1}
		for _, s := range cycle {
			for _, r := range m.at(s, stayWaiting) {
				if m.stuck(r, stayHolding, cycle) && (oldest[0] < 0 || m.age(r, oldest[0]) < 0) {
					oldest = [2]int{r, s}
				}
			}
		}
		m.above[oldest[1]]++
		m.grant(oldest[0], oldest[1])
	}
}

// cycle is the largest set of stages that block each other: each request with a slot of one of them waits for one
// of them, and for each of them waits a request with a slot of one.
func (m *admissionModel) cycle() (largest []int) {
	for set := range 1 << len(m.bounds) {
		var stages []int
		for s := range m.bounds {
			if set>>s&1 == 1 {
				stages = append(stages, s)
			}
		}
		if len(stages) > len(largest) && m.closed(stages) {
			largest = stages
		}
	}
	return largest
}

func (m *admissionModel) closed(stages []int) bool {
	for _, s := range stages {
		holds := m.at(s, stayHolding)
		free := func(r int) bool { return !m.stuck(r, stayWaiting, stages) }
		wanted := func(r int) bool { return m.stuck(r, stayHolding, stages) }
		if len(holds) < m.bounds[s] || slices.ContainsFunc(holds, free) || !slices.ContainsFunc(m.at(s, stayWaiting), wanted) {
			return false
		}
	}
	return true
}

// stuck reports whether a request that is not over has the given stay at one of the stages.
func (m *admissionModel) stuck(r int, as stay, stages []int) bool {
	return !m.requests[r].over() && slices.ContainsFunc(stages, func(s int) bool { return m.stays[r][s] == as })
}

// isBackward reports whether a request waits for a stage before one whose slot it holds.
func (m *admissionModel) isBackward(r int) bool {
	waits := slices.Index(m.stays[r], stayWaiting)
	return waits >= 0 && slices.Contains(m.stays[r][waits:], stayHolding)
}

func (m *admissionModel) check(t *rapid.T) {
	a := &m.bus.admission
	backward := 0
	for r, req := range m.requests {
		for s := range m.bounds {
			task := &req.tasks[s]
			if got := task.stay.Load(); got != m.stays[r][s] {
				t.Fatalf("request %d (order %d) stays %d at stage %d, want %d; granted: %v", r, req.order, got, s, m.stays[r][s], m.grants)
			}
			if has := task.slot.Load() != nil; has != (m.stays[r][s] == stayHolding) {
				t.Fatalf("request %d stays %d at stage %d and has a slot: %v", r, m.stays[r][s], s, has)
			}
		}
		if req.backward {
			backward++
		}
		if want := m.isBackward(r); !req.over() && req.backward != want { // otherwise it changes at the withdraw
			t.Fatalf("request %d is backward: %v; it stays %v", r, req.backward, m.stays[r])
		}
	}
	if a.backward != backward || a.served.Load() != m.served {
		t.Fatalf("%d requests are backward and orders up to %d are served, want %d and %d", a.backward, a.served.Load(), backward, m.served)
	}
	for s, st := range a.stages {
		var line []int
		for _, w := range st.waits {
			line = append(line, slices.Index(m.requests, w.outputs.req))
		}
		if want := m.at(s, stayWaiting); !slices.Equal(line, want) {
			t.Fatalf("requests %v wait at stage %d, want %v", line, s, want)
		}
		holders := len(m.at(s, stayHolding))
		if len(st.holders) != holders || len(st.free)+len(st.spare) != modelRequests-holders || st.admittedAbove != m.above[s] {
			t.Fatalf("stage %d has %d requests, %d slots are free, and %d were granted above the bound; want %d, %d and %d",
				s, len(st.holders), len(st.free)+len(st.spare), st.admittedAbove, holders, modelRequests-holders, m.above[s])
		}
		if holders < m.bounds[s] && slices.ContainsFunc(st.waits, func(w *Task) bool { return !w.outputs.req.over() }) {
			t.Fatalf("stage %d has a free slot, and requests %v wait", s, line)
		}
	}
	if cycle := m.cycle(); len(cycle) > 0 {
		t.Fatalf("a cycle of stages %v is left", cycle)
	}
}
