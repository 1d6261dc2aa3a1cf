package node

import (
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// tellAfter is how long a process lets figures change before it tells the host.
const figuresDelay = time.Second

// tensorReport tells the host of a node the figures of the node's lane.
type tensorReport struct {
	node      *Node
	scheduled atomic.Bool // a timer runs
}

// schedule is for lane.Lane.OnCount.
func (r *tensorReport) schedule() {
	if r.scheduled.CompareAndSwap(false, true) {
		time.AfterFunc(figuresDelay, r.send)
	}
}

func (r *tensorReport) send() {
	r.scheduled.Store(false) // what is counted from here on is for the next
	r.node.mu.Lock()
	l := r.node.link
	r.node.mu.Unlock()
	if l != nil {
		l.sendFigures()
	}
}

// sentFigures is what a link's host knows of the lane.
type sentFigures struct {
	mu   lockorder.Mutex[lockorder.ToldFigures]
	base lane.Stats // when the link was made
	last lane.Stats
}

// sendFigures tells the host what is new. No goroutine waits for the answer.
func (l *link) sendFigures() {
	l.figures.mu.Lock()
	defer l.figures.mu.Unlock()
	figures := l.node.lane.Stats().Since(l.figures.base)
	if figures == l.figures.last {
		return
	}
	l.figures.last = figures
	arguments, err := json.Marshal(figures)
	if err != nil {
		panic(err) // they are numbers
	}
	l.Queue(&wire.Call{Token: l.tokens.Add(1), Method: hostnode.MethodTensors, Arguments: arguments})
}
