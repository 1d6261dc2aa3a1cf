package load

import (
	"slices"
	"strings"
)

// A dim is a dimension of the matrix.
type dim int

const (
	dimFirst dim = iota
	dimSecond
	dimState
	dimRouting
	dimCaller
	dimConcurrency
	dimPlaces
	dimSlots
	dimPolicy
	dimWindow
	dimSize
	dimEnds
	dimPace
	dimStream
	dimCount
)

// Kinds of stages. Those of hosted are in the host's process.
const (
	kindNone       = "none" // the pipeline has one stage
	kindHandle     = "handle"
	kindBatch      = "batch"
	kindActor      = "actor"
	kindJoin       = "join"
	kindNode       = "node"
	kindNodeBatch  = "node-batch"
	kindNodeJoin   = "node-join"
	kindPython     = "python-sync"
	kindThreads    = "python-threads"
	kindAsync      = "python-async"
	kindGenerator  = "python-generator"
	kindPyBatch    = "python-batch"
	kindPythonJoin = "python-join"
)

// Values of the other dimensions that code compares.
const (
	stateNone, stateRequest, stateReplay                       = "none", "request", "replay"
	callerHost, callerNode, callerCommand                      = "host", "node", "command"
	callerPython, callerAsyncio                                = "python", "asyncio"
	below, at, above                                           = "below", "at", "above"
	policyBlock, policyFail, policyDrop, policyFailInput       = "block", "fail", "drop-oldest", "fail-input"
	sizeInline, sizeStore, sizeLarge                           = "inline", "store", "large"
	endComplete, endClose, endAbort, endDeadline, endMixed     = "complete", "close", "abort", "deadline", "mixed"
	paceEven, paceSlowFirst, paceSlowSecond                    = "even", "slow-first", "slow-second"
	streamSingle, streamInputs, streamEmissions, streamSeveral = "single", "inputs", "emissions", "several"
	routingSticky, routingLeastQueue, routingRoundRobin        = "sticky", "least-queue", "round-robin"
)

// dimensions lists the values of each dimension.
var dimensions = [dimCount]struct {
	name   string
	values []string
}{
	dimFirst: {"first", []string{
		kindHandle, kindBatch, kindActor, kindNode, kindNodeBatch,
		kindPython, kindThreads, kindAsync, kindGenerator, kindPyBatch,
	}},
	dimSecond: {"second", []string{
		kindNone, kindHandle, kindBatch, kindActor, kindJoin, kindNode, kindNodeBatch, kindNodeJoin,
		kindPython, kindThreads, kindAsync, kindGenerator, kindPyBatch, kindPythonJoin,
	}},
	dimState:       {"state", []string{stateNone, stateRequest, stateReplay}},
	dimRouting:     {"routing", []string{routingSticky, routingLeastQueue, routingRoundRobin}},
	dimCaller:      {"caller", []string{callerHost, callerNode, callerCommand, callerPython, callerAsyncio}},
	dimConcurrency: {"concurrency", []string{below, at, above}},
	dimPlaces:      {"places", []string{"1", "4", "16"}},     // max_requests
	dimSlots:       {"slots", []string{"1x1", "1x4", "2x4"}}, // replicas, and max_inflight of each
	dimPolicy:      {"policy", []string{policyBlock, policyFail, policyDrop, policyFailInput}},
	dimWindow:      {"window", []string{"2", "64"}}, // of the edge that has the policy
	dimSize:        {"size", []string{sizeInline, sizeStore, sizeLarge}},
	dimEnds:        {"ends", []string{endComplete, endClose, endAbort, endDeadline, endMixed}},
	dimPace:        {"pace", []string{paceEven, paceSlowFirst, paceSlowSecond}},
	dimStream:      {"stream", []string{streamSingle, streamInputs, streamEmissions, streamSeveral}},
}

// A cell has one value of each dimension; an empty one is not chosen yet.
type cell [dimCount]string

func (c *cell) String() string {
	all := make([]string, dimCount)
	for d := range dimCount {
		all[d] = dimensions[d].name + "=" + c[d]
	}
	return strings.Join(all, " ")
}

// A rule excludes cells. A value that is not chosen yet excludes nothing, so that it is seen
// early that a cell cannot be completed.
type rule struct {
	reason   string
	excludes func(c *cell) bool
}

// rules exclude what a pipeline file refuses, what waits for itself by design, and what a
// caller cannot ask for.
var rules = []rule{
	{
		"with one stage there is no edge between stages to have a policy",
		func(c *cell) bool { return c.single() && (c[dimPolicy] == policyFail || c[dimPolicy] == policyDrop) },
	},
	{
		"with one stage there is no second one to be slow",
		func(c *cell) bool { return c.single() && c[dimPace] == paceSlowSecond },
	},
	{
		"replay is for Handle and for processes: only there does the bus know what the stage has seen",
		func(c *cell) bool {
			return c[dimState] == stateReplay && c.some(kindBatch, kindActor, kindJoin, kindNodeBatch, kindNodeJoin)
		},
	},
	{
		"a stage with state must see all of a request: other routing than sticky needs state none",
		func(c *cell) bool {
			return (c[dimState] == stateRequest || c[dimState] == stateReplay) && c.scattered()
		},
	},
	{
		"routing is for the replicas of stages that are processes",
		func(c *cell) bool {
			return c.scattered() && hosted(c[dimFirst]) && (c.single() || hosted(c[dimSecond]))
		},
	},
	{
		"a join pairs deliveries by their place: they are in order, and none is dropped",
		func(c *cell) bool { return c.joins() && (c.scattered() || c[dimPolicy] == policyDrop) },
	},
	{
		"a stage that never waits queues what it emits, and a queue refuses what is larger than its window",
		func(c *cell) bool { return c[dimSize] == sizeLarge && c.some(kindBatch, kindActor, kindNodeBatch) },
	},
	{
		"inputs kept for a replay must fit the byte window",
		func(c *cell) bool { return c[dimState] == stateReplay && c[dimSize] == sizeLarge },
	},
	{
		"a batch in Python has one output for each input",
		func(c *cell) bool { return c[dimFirst] == kindPyBatch && c.emissions() > 1 },
	},
	{
		"omnibus submit sends one input",
		func(c *cell) bool {
			return c[dimCaller] == callerCommand && c.inputs() > 1
		},
	},
}

// An actor (Props) of a node is no value of the dimensions: it is told of no end of a stream
// while it holds a delivery, and one that holds none is a Handle.

// allowed reports whether no rule excludes the cell.
func (c *cell) allowed() bool {
	return !slices.ContainsFunc(rules, func(r rule) bool { return r.excludes(c) })
}

func hosted(kind string) bool {
	return kind == kindHandle || kind == kindBatch || kind == kindActor || kind == kindJoin
}

func python(kind string) bool { return strings.HasPrefix(kind, "python-") }

func (c *cell) single() bool { return c[dimSecond] == kindNone }

// joins reports whether the second stage joins the first one with another of its kind.
func (c *cell) joins() bool {
	return c[dimSecond] == kindJoin || c[dimSecond] == kindNodeJoin || c[dimSecond] == kindPythonJoin
}

// some reports whether a stage is of one of the kinds.
func (c *cell) some(kinds ...string) bool {
	return slices.Contains(kinds, c[dimFirst]) || slices.Contains(kinds, c[dimSecond])
}

// program reports whether the host is a program of its own: omnibus run has no stages in its
// process, and submits nothing.
func (c *cell) program() bool {
	return hosted(c[dimFirst]) || hosted(c[dimSecond]) || c[dimCaller] == callerHost
}

// scattered reports whether the deliveries of a request go to several replicas, so that its
// results come in any order.
func (c *cell) scattered() bool {
	return c[dimRouting] == routingLeastQueue || c[dimRouting] == routingRoundRobin
}

// inputs is how many inputs a request has.
func (c *cell) inputs() int {
	if c[dimStream] == streamInputs || c[dimStream] == streamSeveral {
		return 5
	}
	return 1
}

// emissions is how many payloads the first stage emits for each input. The second one emits one.
func (c *cell) emissions() int {
	if c[dimStream] == streamEmissions || c[dimStream] == streamSeveral {
		return 3
	}
	return 1
}
