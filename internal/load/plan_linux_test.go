package load

import (
	"math/rand/v2"
	"time"
)

// A plan describes one request for its caller.
type plan struct {
	Number int           `json:"number"` // index in the cell
	Tag    uint64        `json:"tag"`
	To     string        `json:"to"` // the stage that gets the inputs; "": every first stage
	Inputs int           `json:"inputs"`
	Total  uint32        `json:"total"` // bytes of each payload
	End    string        `json:"end"`   // one of dimEnds, but for endMixed
	After  time.Duration `json:"after"` // the time until the end
}

// maxEndDelays bound the time until a close, an abort or a deadline: some are while the request
// begins, some while it runs or waits for a permit, and some after it has ended.
var maxEndDelays = []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, 400 * time.Millisecond}

// A tag has the number of the request in its lowest bits, then its route, and the seed of the cell.
const (
	numberBits = 30
	routeBits  = 2
)

func numberOf(tag uint64) int { return int(tag & (1<<numberBits - 1)) }

// routes are the branches of a request, by route. Branch 0 is the slow one.
var routes = [1 << routeBits][]int{routeSlow: {0}, routeQuick: {1}, routeSlowFirst: {0, 1}, routeQuickFirst: {1, 0}}

const (
	routeSlow = iota
	routeQuick
	routeSlowFirst // to both
	routeQuickFirst
)

func routeOf(tag uint64) int { return int(tag >> numberBits % (1 << routeBits)) }

// quick reports whether a request of a cell with branches goes only to the quick branch.
func (p *plan) quick() bool { return routeOf(p.Tag) == routeQuick }

// branches are the stages between which requests choose, the slow one first; nil: there is no choice.
func (c *cell) branches() []string {
	switch {
	case c.routed():
		return []string{stageImage, stageText}
	case c[dimShape] == shapeAlone:
		return []string{stageSecond, stageFirst}
	}
	return nil
}

// branchesOf are the branches of a request, in order.
func (c *cell) branchesOf(tag uint64) (all []string) {
	if branches := c.branches(); branches != nil {
		for _, i := range routes[routeOf(tag)] {
			all = append(all, branches[i])
		}
	}
	return all
}

// route draws the route of a request, which is one of so many.
func (c *cell) route(rng *rand.Rand, number, of int) int {
	switch {
	case c.branches() == nil:
		return 0
	case c[dimPace] == paceGated && number < min(c.blockedRequests(), of-1):
		return routeSlow
	case c[dimPace] == paceGated:
		return routeQuick
	case c[dimShape] == shapeAlone:
		return rng.IntN(2) // to one
	}
	return rng.IntN(len(routes))
}

// plans draws the requests of a cell.
func (c *cell) plans(seed uint64, n int) []plan {
	rng := rand.New(rand.NewPCG(seed, 2))
	all := make([]plan, n)
	for i := range all {
		tag := (seed<<routeBits|uint64(c.route(rng, i, n)))<<numberBits | uint64(i)
		all[i] = plan{Number: i, Tag: tag, Inputs: c.inputs(), Total: c.total(rng), End: c[dimEnds]}
		if c[dimShape] == shapeAlone {
			all[i].To = c.branchesOf(tag)[0]
		}
		if all[i].End == endMixed {
			all[i].End = []string{endComplete, endClose, endAbort, endDeadline}[rng.IntN(4)]
		}
		if all[i].End != endComplete {
			all[i].After = time.Duration(rng.Int64N(int64(maxEndDelays[rng.IntN(len(maxEndDelays))])))
		}
	}
	return all
}

func (c *cell) total(rng *rand.Rand) uint32 {
	between := func(low, high uint32) uint32 { return low + rng.Uint32N(high-low+1) }
	switch c[dimSize] {
	case sizeInline:
		return between(headerBytes, 500) // inline_bytes is 512
	case sizeStore:
		return between(1<<10, 20<<10)
	}
	return between(smallWindowBytes+1<<10, 4*smallWindowBytes)
}

// results are the results that the pipeline computes from a request's inputs, in order.
func (c *cell) results(p *plan) (all []header) {
	emissions := uint32(c.emissions())
	for seq := range uint32(p.Inputs) {
		in := inputOf(p.Tag, seq, p.Total)
		if p.To == stageSecond {
			all = append(all, next(stageSecond, 0, 1, in))
			continue
		}
		for j := range emissions {
			out := next(stageFirst, j, emissions, in)
			if c.joins() && c[dimShape] == shapeChain {
				all = append(all, next(stageSecond, 0, 1, out, next(stageSide, j, emissions, in)))
				continue
			}
			all = append(all, c.afterFirst(out)...)
		}
	}
	return all
}

// afterFirst are the results of an emission of the first stage.
func (c *cell) afterFirst(h header) (all []header) {
	then := func(stage string, parts ...header) header { return next(stage, 0, 1, parts...) }
	switch {
	case c.single(), c[dimShape] == shapeAlone:
		return []header{h}
	case c.routed():
		for _, branch := range c.branchesOf(h.tag) {
			all = append(all, then(stageSecond, then(branch, h)))
		}
		return all
	case c[dimShape] == shapeDiamond:
		return []header{then(stageSecond, then(stageLeft, h), then(stageRight, h))}
	case c[dimShape] == shapeUneven:
		return []header{then(stageSecond, then(stageMore, then(stageLeft, h)), then(stageRight, h))}
	}
	return []header{then(stageSecond, h)}
}
