package load

import (
	"math/rand/v2"
	"time"
)

// A plan is one request, as its caller is told of it.
type plan struct {
	Number int           `json:"number"` // among those of the cell
	Tag    uint64        `json:"tag"`
	Inputs int           `json:"inputs"`
	Total  uint32        `json:"total"` // bytes of each payload
	End    string        `json:"end"`   // one of dimEnds, but for endMixed
	After  time.Duration `json:"after"` // until that
}

// mostEnds bound the time until a close, an abort or a deadline: some come when the request
// begins, some when it runs or waits for a place, and some when it is over.
var mostEnds = []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, 400 * time.Millisecond}

// numberBits are those of a tag that hold the number of the request.
const numberBits = 32

// plans draws the requests of a cell.
func (c *cell) plans(seed uint64, n int) []plan {
	rng := rand.New(rand.NewPCG(seed, 2))
	all := make([]plan, n)
	for i := range all {
		all[i] = plan{Number: i, Tag: seed<<numberBits | uint64(i), Inputs: c.inputs(), Total: c.total(rng), End: c[dimEnds]}
		if all[i].End == endMixed {
			all[i].End = []string{endComplete, endClose, endAbort, endDeadline}[rng.IntN(4)]
		}
		if all[i].End != endComplete {
			all[i].After = time.Duration(rng.Int64N(int64(mostEnds[rng.IntN(len(mostEnds))])))
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

// results are what the pipeline computes from a request's inputs, in order.
func (c *cell) results(p *plan) (all []header) {
	emissions := uint32(c.emissions())
	for seq := range uint32(p.Inputs) {
		in := inputOf(p.Tag, seq, p.Total)
		for j := range emissions {
			out := next(stageFirst, j, emissions, in)
			switch {
			case c.joins():
				out = next(stageSecond, 0, 1, out, next(stageSide, j, emissions, in))
			case !c.single():
				out = next(stageSecond, 0, 1, out)
			}
			all = append(all, out)
		}
	}
	return all
}
