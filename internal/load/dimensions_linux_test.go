package load

import (
	"slices"
	"strings"
)

// A dim is a dimension of the matrix.
type dim int

const (
	dimShape dim = iota
	dimFirst
	dimSecond
	dimState
	dimRouting
	dimCaller
	dimConcurrency
	dimPermits
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

// Shapes of pipelines: see ways.
const (
	shapeChain      = "chain"
	shapeImageFirst = "image-first" // each request goes from first to image, text or both, and then to second
	shapeTextFirst  = "text-first"  // ... with the edges in the other order
	shapeAlone      = "alone"       // each request goes to first or to second, between which there is no edge
	shapeDiamond    = "diamond"     // second joins the payloads that go from first through left and right
	shapeUneven     = "uneven"      // ... with one stage more after left
)

// Values of the other dimensions that the code compares.
const (
	stateNone, stateRequest, stateReplay                       = "none", "request", "replay"
	callerHost, callerNode, callerCommand                      = "host", "node", "command"
	callerPython, callerAsyncio                                = "python", "asyncio"
	below, at, above                                           = "below", "at", "above"
	policyBlock, policyFail, policyDrop, policyFailInput       = "block", "fail", "drop-oldest", "fail-input"
	sizeInline, sizeStore, sizeLarge                           = "inline", "store", "large"
	endComplete, endClose, endAbort, endDeadline, endMixed     = "complete", "close", "abort", "deadline", "mixed"
	paceEven, paceSlowFirst, paceSlowSecond, paceGated         = "even", "slow-first", "slow-second", "gated"
	streamSingle, streamInputs, streamEmissions, streamSeveral = "single", "inputs", "emissions", "several"
	routingSticky, routingLeastQueue, routingRoundRobin        = "sticky", "least-queue", "round-robin"
)

// dimensions lists the values of each dimension.
var dimensions = [dimCount]struct {
	name   string
	values []string
}{
	dimShape: {"shape", []string{
		shapeChain, shapeImageFirst, shapeTextFirst, shapeAlone, shapeDiamond, shapeUneven,
	}},
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
	dimPermits:     {"permits", []string{"1", "4", "16"}},    // max_requests
	dimSlots:       {"slots", []string{"1x1", "1x4", "2x4"}}, // replicas, and max_inflight of each
	dimPolicy:      {"policy", []string{policyBlock, policyFail, policyDrop, policyFailInput}},
	dimWindow:      {"window", []string{"2", "64"}}, // of the edge that has the policy
	dimSize:        {"size", []string{sizeInline, sizeStore, sizeLarge}},
	dimEnds:        {"ends", []string{endComplete, endClose, endAbort, endDeadline, endMixed}},
	dimPace:        {"pace", []string{paceEven, paceSlowFirst, paceSlowSecond, paceGated}},
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

// A rule excludes cells. It also applies to incomplete cells, so that a cell that cannot be completed
// is rejected early; a value that is not chosen yet excludes nothing.
type rule struct {
	reason   string
	excludes func(c *cell) bool
}

// rules exclude cells that a pipeline file refuses, that deadlock by design, or that a caller
// cannot request.
var rules = []rule{
	{
		"one stage is a chain",
		func(c *cell) bool { return c.single() && c[dimShape] != "" && c[dimShape] != shapeChain },
	},
	{
		"a diamond ends in a join, to which a request sends on all edges",
		func(c *cell) bool {
			return c.diamond() && c[dimSecond] != "" && !c.some(joins...) || c.branches() != nil && c.joins()
		},
	},
	{
		"the return value of a function in Python goes to all edges",
		func(c *cell) bool {
			return c.routed() && (c[dimFirst] == kindGenerator || c[dimFirst] == kindPyBatch)
		},
	},
	{
		"there is no edge between stages for a policy",
		func(c *cell) bool {
			return (c.single() || c[dimShape] == shapeAlone) && (c[dimPolicy] == policyFail || c[dimPolicy] == policyDrop)
		},
	},
	{
		"with one stage there is no second one to be slow",
		func(c *cell) bool { return c.single() && (c[dimPace] == paceSlowSecond || c[dimPace] == paceGated) },
	},
	{
		"a request that others wait for has no delivery at the gated stage after theirs",
		func(c *cell) bool {
			return c[dimPace] == paceGated && c[dimStream] != "" && c[dimStream] != streamSingle
		},
	},
	{
		"a blocked actor receives no end, and the return value of a function in Python may not be sent yet",
		func(c *cell) bool {
			batch := c[dimSecond] == kindBatch || c[dimSecond] == kindPyBatch
			return c[dimPace] == paceGated && (c[dimSecond] == kindActor || batch && c[dimShape] == shapeChain)
		},
	},
	{
		"blocked requests leave permits and callers to the quick ones",
		func(c *cell) bool {
			return c[dimPace] == paceGated && c.branches() != nil && (c[dimPermits] == "1" || c[dimConcurrency] == below)
		},
	},
	{
		"omnibus submit reports the outcomes of many requests together",
		func(c *cell) bool { return c[dimPace] == paceGated && c[dimCaller] == callerCommand },
	},
	{
		"replay is for Handle and for processes: only there does the bus know which deliveries the stage has handled",
		func(c *cell) bool {
			return c[dimState] == stateReplay && c.some(kindBatch, kindActor, kindJoin, kindNodeBatch, kindNodeJoin)
		},
	},
	{
		"a stage with state must get all deliveries of a request: other routing than sticky needs state none",
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
		"a join pairs deliveries by their sequence: they are in order, and none is dropped",
		func(c *cell) bool { return c.joins() && (c.scattered() || c[dimPolicy] == policyDrop) },
	},
	{
		"a stage that never waits queues its emissions, and a queue refuses a payload larger than its window",
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
		"omnibus submit sends one input, to every first stage",
		func(c *cell) bool {
			return c[dimCaller] == callerCommand && (c.inputs() > 1 || c[dimShape] == shapeAlone)
		},
	},
}

// An actor (Props) of a node is no value of the dimensions: it does not receive the end of a stream
// while it holds a delivery, and an actor that holds none is like a Handle.

// allowed reports whether no rule excludes the cell.
func (c *cell) allowed() bool {
	return !slices.ContainsFunc(rules, func(r rule) bool { return r.excludes(c) })
}

func hosted(kind string) bool {
	return kind == kindHandle || kind == kindBatch || kind == kindActor || kind == kindJoin
}

func python(kind string) bool { return strings.HasPrefix(kind, "python-") }

func (c *cell) single() bool { return c[dimSecond] == kindNone }

func (c *cell) diamond() bool { return c[dimShape] == shapeDiamond || c[dimShape] == shapeUneven }

// routed reports whether the first stage chooses where each request goes.
func (c *cell) routed() bool { return c[dimShape] == shapeImageFirst || c[dimShape] == shapeTextFirst }

// joins reports whether the second stage joins: in a diamond both sides, otherwise the first stage
// with another one of its kind.
func (c *cell) joins() bool { return c.diamond() || c.some(joins...) }

var joins = []string{kindJoin, kindNodeJoin, kindPythonJoin}

// some reports whether a stage is of one of the kinds.
func (c *cell) some(kinds ...string) bool {
	return slices.Contains(kinds, c[dimFirst]) || slices.Contains(kinds, c[dimSecond])
}

// program reports whether the host is this test's program: omnibus run has no stages in its
// process, and submits no requests.
func (c *cell) program() bool {
	return hosted(c[dimFirst]) || hosted(c[dimSecond]) || c[dimCaller] == callerHost
}

// scattered reports whether the deliveries of a request go to several replicas, so that its
// results are in any order.
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

// emissions is how many payloads the first stage emits for each input. The second stage emits one.
func (c *cell) emissions() int {
	if c[dimStream] == streamEmissions || c[dimStream] == streamSeveral {
		return 3
	}
	return 1
}
