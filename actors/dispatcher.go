package actors

import (
	"slices"
	"sync"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

const (
	// throughput is how many messages a mailbox handles before it lets other
	// goroutines run.
	throughput = 300

	// maxIdle is how many workers without work a dispatcher keeps for the next one.
	maxIdle = 64
)

// Dispatcher runs mailboxes on goroutines that it keeps and reuses.
//
// The library's own dispatcher starts a goroutine each time a mailbox has work
// again. Such a goroutine begins with a small stack and grows it again on its
// way down to the handler, which costs more than most handlers do. The workers
// of a Dispatcher park instead, and keep the stacks that they have grown.
//
// Work is handed to the worker that parked last, whose stack is the most likely
// to be in the cache. If none is parked a new one is started, so a handler that
// blocks holds up nobody but its own actor, and the number of workers is the
// number of mailboxes that are running at the same time. A worker that finds
// maxIdle others parked leaves instead of parking: that bounds what a burst
// leaves behind, and no timer is needed to clean up.
//
// A Dispatcher may be shared by any number of actors. All methods are safe for
// concurrent use.
type Dispatcher struct {
	spinner *Spinner // nil: a worker without work parks at once

	mu     lockorder.Mutex[lockorder.Dispatcher]
	idle   []*worker // parked, the last one on top
	closed bool

	leaving sync.WaitGroup // workers that Close has told to leave
}

var _ actor.Dispatcher = (*Dispatcher)(nil)

// worker is a goroutine's place in the idle list.
type worker struct {
	// work passes the next function to a parked worker; nil tells it to leave.
	// It has room for one: only who took the worker off the idle list sends,
	// and so never waits.
	work chan func()
}

// NewDispatcher returns a dispatcher without workers; they come with the work. With a
// lookout, a worker that has become idle looks for work before it parks.
func NewDispatcher(spinner *Spinner) *Dispatcher { return &Dispatcher{spinner: spinner} }

// Schedule runs fn on a worker and returns at once. fn must not panic.
//
// After Close it starts a goroutine for each fn, as the library's own
// dispatcher does: an actor that stops late still gets its last messages.
func (d *Dispatcher) Schedule(fn func()) {
	d.spinner.Wake()
	if w := d.unpark(); w != nil {
		w.work <- fn
		return
	}
	go d.run(fn)
}

// Throughput returns how many messages a mailbox handles before it lets other
// goroutines run.
func (d *Dispatcher) Throughput() int { return throughput }

// Close makes the parked workers leave and waits until they have. A worker that
// is still running a mailbox leaves by itself when that mailbox is empty; Close
// does not wait for it, so that a handler may call Close. It is safe to call
// Close more than once.
func (d *Dispatcher) Close() {
	d.mu.Lock()
	idle := d.idle
	d.idle, d.closed = nil, true
	d.leaving.Add(len(idle))
	d.mu.Unlock()

	for _, w := range idle {
		d.spinner.Wake()
		w.work <- nil
	}
	d.leaving.Wait()
}

// run is the life of one worker.
func (d *Dispatcher) run(fn func()) {
	w := &worker{work: make(chan func(), 1)}
	begin := func() bool { return d.remove(w) }
	called := func() bool { return len(w.work) > 0 }
	for {
		d.spinner.Awake()
		fn()
		for {
			if !d.park(w) {
				return
			}
			if d.spinner.NeverParks() {
				if !d.spinner.PollUntil(begin, called) {
					break
				}
			} else if !d.spinner.Poll(begin) {
				break
			}
		}
		if fn = <-w.work; fn == nil {
			d.spinner.Awake()
			d.leaving.Done()
			return
		}
	}
}

// remove takes w off the idle list, where it was parked last or nearly so. It returns
// false if w is not there: it has been given work, or is told to leave.
func (d *Dispatcher) remove(w *worker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := len(d.idle) - 1; i >= 0; i-- {
		if d.idle[i] == w {
			d.idle = slices.Delete(d.idle, i, i+1)
			return true
		}
	}
	return false
}

// park offers w for work. It returns false if w has to leave instead.
func (d *Dispatcher) park(w *worker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.idle) >= maxIdle {
		return false
	}
	d.idle = append(d.idle, w)
	return true
}

// unpark takes the worker that parked last off the list. It returns nil if
// there is none.
func (d *Dispatcher) unpark() *worker {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := len(d.idle) - 1
	if last < 0 {
		return nil
	}
	w := d.idle[last]
	d.idle[last] = nil
	d.idle = d.idle[:last]
	return w
}
