package load

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// longRequests is how many requests each cell of TestLong has with -load.long.
const longRequests = 200_000

// base is the cell from which those of TestLong are derived.
var base = cell{
	dimShape: shapeChain, dimFirst: kindNode, dimSecond: kindNone, dimState: stateNone, dimRouting: routingSticky,
	dimCaller: callerNode, dimConcurrency: above, dimPermits: "16", dimSlots: "2x4", dimPolicy: policyBlock,
	dimWindow: "64", dimSize: sizeInline, dimEnds: endComplete, dimPace: paceEven, dimStream: streamSingle,
}

// A longCell is a cell of TestLong.
type longCell struct {
	name   string
	change map[dim]string
}

// long are cells that have hung in the past.
var long = append([]longCell{
	{"one Go stage and omnibus submit, far above the slots", map[dim]string{dimCaller: callerCommand}},
	{"one stage in the host's process", map[dim]string{dimFirst: kindHandle}},
	{"one stage in the host's process, and its own requests", map[dim]string{dimFirst: kindHandle, dimCaller: callerHost}},
	{"requests of one Python client read in order, one permit", map[dim]string{dimCaller: callerPython, dimPermits: "1"}},
	{
		"asyncio callers that close requests at random moments",
		map[dim]string{dimCaller: callerAsyncio, dimEnds: endClose, dimPermits: "4"},
	},
}, gatedCells()...)

// gatedCells are pipelines in which requests have waited for the work of others in the past.
func gatedCells() (all []longCell) {
	for _, shape := range []string{shapeImageFirst, shapeAlone, shapeChain} {
		for _, by := range [][2]string{{kindHandle, callerHost}, {kindNode, callerNode}, {kindPython, callerPython}} {
			all = append(all, longCell{shape + ", " + by[0], map[dim]string{
				dimShape: shape, dimFirst: by[0], dimSecond: by[0], dimCaller: by[1], dimSlots: "1x4", dimPace: paceGated,
			}})
		}
	}
	return all
}

// cell is the base with its changes. With -load.long the slow stage is slow instead of blocked,
// since each gate is a file.
func (l *longCell) cell() *cell {
	c := base
	for d, v := range l.change {
		c[d] = v
	}
	if *longFlag && c[dimPace] == paceGated {
		c[dimPace] = paceSlowSecond
	}
	return &c
}

// TestLong runs cells that have hung in the past: with few requests, or with many by -load.long.
func TestLong(t *testing.T) {
	pythontest.Interpreter(t)
	requests := *requestsFlag
	if *longFlag {
		requests = longRequests
	}
	for i, l := range long {
		t.Run(l.name, func(t *testing.T) {
			r := newRun(t, l.cell(), *seedFlag<<12|uint64(i), requests)
			if err := r.do(); err != nil {
				t.Errorf("%v\nthe cell: %v\nits files: %s", err, r.cell, r.dir)
			}
		})
	}
}

// TestLongIsAllowed: the rules allow the cells of TestLong.
func TestLongIsAllowed(t *testing.T) {
	for _, l := range long {
		if c := l.cell(); !c.allowed() {
			t.Errorf("%s: %v is excluded", l.name, c)
		}
	}
}
