package bus

import (
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// methodTensors is the call by which a process tells the host its figures of tensors
// on GPUs, as lane.Stats in JSON: what it has counted since it connected. They are not
// the host's to count, since it does not see why tensors go another way.
const methodTensors = "tensors"

// tensorFigures are what the processes of a bus have told.
type tensorFigures struct {
	mu   sync.Mutex
	now  map[*session]lane.Stats
	gone lane.Stats // of those that have left
}

// told takes the figures of a process, in place of those that it told before.
func (f *tensorFigures) told(s *session, arguments []byte) error {
	var figures lane.Stats
	if err := json.Unmarshal(arguments, &figures); err != nil {
		return fmt.Errorf("%w: arguments of %s: %w", ErrPayload, methodTensors, err)
	}
	if err := figures.Validate(); err != nil {
		return fmt.Errorf("%w: arguments of %s: %w", ErrPayload, methodTensors, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil {
		f.now = make(map[*session]lane.Stats)
	}
	f.now[s] = figures
	return nil
}

// leave keeps what a process has counted, which is gone, and tells no more.
func (f *tensorFigures) leave(s *session) {
	f.mu.Lock()
	defer f.mu.Unlock()
	figures := f.now[s]
	delete(f.now, s)
	figures.Open = 0
	f.gone = f.gone.Plus(figures)
}

func (f *tensorFigures) sum() lane.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.gone
	for _, figures := range f.now {
		sum = sum.Plus(figures)
	}
	return sum
}

// tellAfter is how long a process lets figures change before it tells the host.
const tellAfter = time.Second

// tensorReport tells the host of a node the figures of the node's lane.
type tensorReport struct {
	node *Node
	due  atomic.Bool // a timer runs
}

// counted is for lane.Lane.OnCount.
func (r *tensorReport) counted() {
	if r.due.CompareAndSwap(false, true) {
		time.AfterFunc(tellAfter, r.tell)
	}
}

func (r *tensorReport) tell() {
	r.due.Store(false) // what is counted from here on is for the next
	r.node.mu.Lock()
	l := r.node.link
	r.node.mu.Unlock()
	if l != nil {
		l.tellFigures()
	}
}

// toldFigures is what a link's host knows of the lane.
type toldFigures struct {
	mu     sync.Mutex
	before lane.Stats // when the link was made
	last   lane.Stats
}

// tellFigures tells the host what is new. Nobody waits for the answer.
func (l *link) tellFigures() {
	l.figures.mu.Lock()
	defer l.figures.mu.Unlock()
	figures := l.node.lane.Stats().Since(l.figures.before)
	if figures == l.figures.last {
		return
	}
	l.figures.last = figures
	arguments, err := json.Marshal(figures)
	if err != nil {
		panic(err) // they are numbers
	}
	l.queue(&wire.Call{Token: l.tokens.Add(1), Method: methodTensors, Arguments: arguments})
}
