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

// figuresDelay is how long a process collects changes of its figures before it sends them to the
// host.
const figuresDelay = time.Second

// tensorReport sends the figures of the node's lane to the host.
type tensorReport struct {
	node      *Node
	scheduled atomic.Bool // a timer is running
}

// schedule is for lane.Lane.OnCount.
func (r *tensorReport) schedule() {
	if r.scheduled.CompareAndSwap(false, true) {
		time.AfterFunc(figuresDelay, r.send)
	}
}

func (r *tensorReport) send() {
	r.scheduled.Store(false) // later counts schedule the next report
	r.node.mu.Lock()
	l := r.node.link
	r.node.mu.Unlock()
	if l != nil {
		l.sendFigures()
	}
}

// sentFigures are the figures of the lane that a link has sent to its host.
type sentFigures struct {
	mu   lockorder.Mutex[lockorder.SentFigures]
	base lane.Stats // at the start of the link
	last lane.Stats
}

// sendFigures sends the figures if they have changed. The answer is ignored.
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
