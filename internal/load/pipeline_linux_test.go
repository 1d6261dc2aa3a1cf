package load

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

const (
	windowBytes      = 1 << 20  // of every edge
	smallWindowBytes = 64 << 10 // ... of cells whose large payloads exceed the window
)

// Names of the stages. side is another first stage, where the second one joins in a chain.
const (
	stageFirst, stageSide, stageSecond = "first", "side", "second"
	stageImage, stageText              = "image", "text"
	stageLeft, stageMore, stageRight   = "left", "more", "right"
	theCaller                          = "caller" // at the ends of edges
)

// paths cover all edges of the pipelines of the shapes, in order. Chains have none here.
var paths = map[string][][]string{
	shapeImageFirst: {
		{theCaller, stageFirst, stageImage, stageSecond, theCaller}, {stageFirst, stageText, stageSecond},
	},
	shapeTextFirst: {
		{theCaller, stageFirst, stageText, stageSecond, theCaller}, {stageFirst, stageImage, stageSecond},
	},
	shapeAlone: {{theCaller, stageFirst, theCaller}, {theCaller, stageSecond, theCaller}},
	shapeDiamond: {
		{theCaller, stageFirst, stageLeft, stageSecond, theCaller}, {stageFirst, stageRight, stageSecond},
	},
	shapeUneven: {
		{theCaller, stageFirst, stageLeft, stageMore, stageSecond, theCaller}, {stageFirst, stageRight, stageSecond},
	},
}

func (c *cell) ways() [][]string {
	switch {
	case c[dimShape] != shapeChain:
		return paths[c[dimShape]]
	case c.single():
		return [][]string{{theCaller, stageFirst, theCaller}}
	case c.joins():
		return [][]string{{theCaller, stageFirst, stageSecond, theCaller}, {theCaller, stageSide, stageSecond}}
	}
	return [][]string{{theCaller, stageFirst, stageSecond, theCaller}}
}

// stages are the names of the stages.
func (c *cell) stages() (all []string) {
	for _, way := range c.ways() {
		for _, name := range way {
			if name != theCaller && !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return all
}

// kind is the kind of a stage. Stages between the first and the second one have the kind of the
// second, or of the first if the second joins.
func (c *cell) kind(name string) string {
	if name == stageFirst || name == stageSide || name != stageSecond && c.joins() {
		return c[dimFirst]
	}
	return c[dimSecond]
}

// slots are the replicas of each stage, and how many requests may be open at each replica.
func (c *cell) slots() (replicas, inflight int) {
	_, _ = fmt.Sscanf(c[dimSlots], "%dx%d", &replicas, &inflight) // one of three values
	return replicas, inflight
}

func (c *cell) permits() (n int) {
	_, _ = fmt.Sscan(c[dimPermits], &n)
	return n
}

// concurrency is the number of open requests of all callers together.
func (c *cell) concurrency() int {
	switch c[dimConcurrency] {
	case below:
		return max(1, c.permits()/2)
	case at:
		return c.permits()
	}
	return farAbove
}

// farAbove is more than there are permits and slots.
const farAbove = 64

type object = map[string]any

// writePipeline writes the file of a cell's pipeline. omnibus run starts the processes of stages; with
// the test's program as the host, the test starts them and they attach.
func (r *run) writePipeline() (string, error) {
	c := r.cell
	replicas, inflight := c.slots()
	var stages []object
	for _, name := range c.stages() {
		kind := c.kind(name)
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
			own["routing"], own["unordered"] = c[dimRouting], c.scattered()
		}
		if name == stageSecond && c.joins() {
			own["join"] = true
		}
		stages = append(stages, object{"stage_id": name, "omnibus": own})
	}
	text, err := json.MarshalIndent(object{
		"stages": stages, "edges": c.edges(),
		"omnibus": object{"name": "load", "max_requests": c.permits(), "socket": r.socket(), "grace": "1m"},
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
	atInput := c.single() || c[dimShape] == shapeAlone || c[dimPolicy] == policyFailInput
	for _, way := range c.ways() {
		for i, to := range way[1:] {
			from, policy, window := way[i], policyBlock, false
			switch {
			case from == theCaller && to != stageSide:
				policy, window = input, atInput
			case from == stageFirst && to != theCaller:
				policy, window = between, !atInput
			}
			e := object{"from": from, "to": to, "omnibus": object{"window_bytes": bytes, "policy": policy}}
			if window {
				var n int
				_, _ = fmt.Sscan(c[dimWindow], &n)
				e["window_size"] = n
			}
			all = append(all, e)
		}
	}
	return all
}
