package chaos

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
)

// relayedRoles returns the roles of the relayed scenario. Without Python all of them
// are in Go.
func relayedRoles() []role {
	_, err := exec.LookPath("python3")
	python := err == nil
	var all []role
	for _, name := range stageNames {
		r := role{name: "stage " + name, stage: name, env: []string{roleEnv + "=stage"}}
		if name == "b" && python {
			r.python = "stage.py"
		}
		for range stageReplicas {
			all = append(all, r)
		}
	}
	all = append(all, role{name: "submitter", env: []string{roleEnv + "=submit"}})
	if python {
		all = append(all, role{name: "python submitter", python: "submit.py"})
	}
	return all
}

// point is a fault point at which a process can kill itself, and the number of
// passes before, at most, which even a process of short life reaches.
type point struct {
	name   string
	passes int
}

// clientPoints are those of a node, stagePoints those of the handlers in this
// package and in testdata/stage.py.
var (
	stagePoints  = []point{{"stage-begin", 8}, {"stage-half-written", 4}, {"stage-emitted", 8}}
	clientPoints = []point{
		{"peer-before-frame", 4},
		{"peer-frame", 4},
		{"node-segment-mapped", 1},
		{"node-task-opened", 3},
		{"node-delivered", 8},
		{"node-before-put", 8},
		{"node-put", 8},
		{"node-before-finish", 8},
		{"node-finished", 8},
		{"node-returned", 8},
	}
	endPoints = []point{ // of stages with a function for the end of a request
		{"node-before-ended", 3},
		{"node-ended", 3},
	}
	exchangePoints = []point{
		{"node-before-place", 8},
		{"node-placed", 8},
		{"node-fetched", 8},
	}
	submitPoints = []point{
		{"node-segment-mapped", 1},
		{"node-submitted", 3},
		{"node-delivered", 8},
		{"node-before-put", 8},
		{"node-put", 8},
		{"node-before-finish", 8},
		{"node-finished", 8},
		{"node-returned", 8},
		{"node-before-close-send", 3},
	}
)

// directPoints are those of the direct path.
var (
	directPoints = []point{
		{"peer-opened", 2},
		{"peer-received", 64},
		{"peer-before-frame", 64},
		{"peer-frame", 64},
		{"lane-before-publish", 64},
		{"lane-published", 64},
		{"lane-before-advance", 64},
		{"lane-advanced", 64},
		{"node-expecting", 2},
		{"node-routed", 2},
		{"node-before-direct", 64},
		{"node-direct", 64},
		{"node-direct-returned", 64},
		{"node-delivered-direct", 64},
	}
)

// mixedPoints are those of stages, by name, that forward by reference between the
// direct path and the relayed one.
var mixedPoints = map[string][]point{
	"f": {{"node-before-put", 8}, {"node-put", 8}, {"node-delivered-direct", 8}, {"node-returned", 8}, {"node-finished", 8}, {"stage-emitted", 8}},
	"p": {{"stage-begin", 8}, {"stage-emitted", 8}},
	"g": {{"node-before-direct", 8}, {"node-direct", 8}, {"node-before-finish", 8}, {"node-finished", 8}, {"stage-emitted", 8}},
	"x": {{"stage-begin", 16}, {"stage-half-written", 8}, {"stage-emitted", 16}},
}

// pointsOf returns the fault points at which a role is killed. In a scenario with
// direct streams they are those that the relayed one does not have.
func pointsOf(r role) []point {
	switch {
	case slices.Contains(r.env, scenarioEnv+"=gpu"):
		return nil // only at random moments
	case slices.Contains(r.env, scenarioEnv+"=direct"):
		return directPoints
	case slices.Contains(r.env, scenarioEnv+"=direct python"):
		return mixedPoints[r.stage]
	case r.python != "" && r.stage != "":
		return stagePoints
	case r.python != "":
		return nil
	case r.stage == "":
		return submitPoints
	case r.stage == "d": // it forwards, and writes only to the exchange
		return slices.Concat([]point{stagePoints[0], stagePoints[2]}, exchangePoints, clientPoints)
	case r.stage == "k": // it forwards
		return slices.Concat([]point{stagePoints[0], stagePoints[2]}, clientPoints)
	}
	if actsAtEnd(r.stage) {
		return slices.Concat(stagePoints, clientPoints, endPoints)
	}
	return slices.Concat(stagePoints, clientPoints)
}

// faults are the fault points at which processes still have to die, by role.
type faults struct {
	mu   sync.Mutex
	left map[string][]string
}

// newFaults plans a number of deaths at each fault point of each role.
func newFaults(roles []role, times int, r *rand.Rand) *faults {
	f := &faults{left: make(map[string][]string)}
	for _, role := range roles {
		if f.left[role.name] != nil {
			continue // another replica of the same stage stage
		}
		for _, p := range pointsOf(role) {
			for range times {
				f.left[role.name] = append(f.left[role.name], fmt.Sprintf("%s:%d", p.name, 1+r.IntN(p.passes)))
			}
		}
		r.Shuffle(len(f.left[role.name]), func(i, j int) {
			l := f.left[role.name]
			l[i], l[j] = l[j], l[i]
		})
	}
	return f
}

// next returns the fault point at which the next process of a role is to die; empty:
// none.
func (f *faults) next(role string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.left[role]
	if len(l) == 0 {
		return ""
	}
	f.left[role] = l[1:]
	return l[0]
}

// putBack returns a fault point that a process did not reach.
func (f *faults) putBack(role, fault string) {
	if fault == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left[role] = append(f.left[role], fault)
}

// remaining counts the fault points that are left.
func (f *faults) remaining() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.left {
		n += len(l)
	}
	return n
}

// list lists the fault points that are left.
func (f *faults) list() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.left)
}
