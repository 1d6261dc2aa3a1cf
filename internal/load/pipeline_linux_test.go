package load

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

const (
	windowBytes      = 1 << 20  // of every edge
	smallWindowBytes = 64 << 10 // ... where large payloads are to be larger than it
)

// stages are the kinds of the stages, by name.
func (c *cell) stages() map[string]string {
	all := map[string]string{stageFirst: c[dimFirst]}
	if !c.single() {
		all[stageSecond] = c[dimSecond]
	}
	if c.joins() {
		all[stageSide] = c[dimFirst]
	}
	return all
}

// slots are the replicas of each stage, and how many requests are open at each.
func (c *cell) slots() (replicas, inflight int) {
	_, _ = fmt.Sscanf(c[dimSlots], "%dx%d", &replicas, &inflight) // one of three values
	return replicas, inflight
}

func (c *cell) places() (n int) {
	_, _ = fmt.Sscan(c[dimPlaces], &n)
	return n
}

// concurrency is how many requests the callers have open together.
func (c *cell) concurrency() int {
	switch c[dimConcurrency] {
	case below:
		return max(1, c.places()/2)
	case at:
		return c.places()
	}
	return farAbove
}

// farAbove is more than there are places and slots.
const farAbove = 64

type object = map[string]any

// writePipeline writes the file of a cell's pipeline. Processes are started by the host if it is
// omnibus run, and attach by themselves to a program.
func (r *run) writePipeline() (string, error) {
	c := r.cell
	replicas, inflight := c.slots()
	var stages []object
	for _, name := range []string{stageFirst, stageSide, stageSecond} {
		kind, ok := c.stages()[name]
		if !ok {
			continue
		}
		own := object{"replicas": replicas, "max_inflight": inflight, "state": stateRequest}
		switch c[dimState] {
		case stateNone:
			own["state"] = stateNone
		case stateReplay:
			own["replay"] = true
		}
		switch {
		case hosted(kind):
		case c.program():
			own["attach"] = true
		default:
			command, env := r.stageCommand(kind)
			own["exec"], own["env"], own["start_timeout"] = command, env, "5m"
		}
		if !hosted(kind) {
			own["routing"] = c[dimRouting]
		}
		if name == stageSecond && c.joins() {
			own["join"] = true
		}
		stages = append(stages, object{"stage_id": name, "omnibus": own})
	}
	text, err := json.MarshalIndent(object{
		"stages": stages, "edges": c.edges(),
		"omnibus": object{"name": "load", "max_requests": c.places(), "socket": r.socket(), "grace": "1m"},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(r.dir, "pipeline.json")
	return path, os.WriteFile(path, text, 0o600)
}

func (c *cell) edges() (all []object) {
	bytes := windowBytes
	if c[dimSize] == sizeLarge {
		bytes = smallWindowBytes
	}
	input, between := policyBlock, c[dimPolicy]
	if c[dimPolicy] == policyFailInput {
		input, between = policyFail, policyBlock
	}
	windowed := func(from, to, policy string, window bool) {
		e := object{"from": from, "to": to, "omnibus": object{"window_bytes": bytes, "policy": policy}}
		if window {
			var n int
			_, _ = fmt.Sscan(c[dimWindow], &n)
			e["window_size"] = n
		}
		all = append(all, e)
	}
	atInput := c.single() || c[dimPolicy] == policyFailInput
	windowed("caller", stageFirst, input, atInput)
	last := stageFirst
	if !c.single() {
		windowed(stageFirst, stageSecond, between, !atInput)
		last = stageSecond
	}
	if c.joins() {
		windowed("caller", stageSide, policyBlock, false)
		windowed(stageSide, stageSecond, policyBlock, false)
	}
	windowed(last, "caller", policyBlock, false)
	return all
}
