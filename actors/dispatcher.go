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
// to be in the cache. If none is parked a new one is started: a handler that
// blocks delays only its own actor, and the number of workers is the number of
// mailboxes that run at the same time. A worker that finds maxIdle others parked
// exits instead of parking: that bounds the idle workers after a burst without a
// timer.
//
// A Dispatcher may be shared by any number of actors. All methods are safe for
// concurrent use.
type Dispatcher struct {
	spinner *Spinner // nil: a worker without work parks at once

	mu     lockorder.Mutex[lockorder.Dispatcher]
	idle   []*worker // parked, the last one on top
	closed bool

	leaving sync.WaitGroup // workers that Close has told to exit
}

var _ actor.Dispatcher = (*Dispatcher)(nil)

// worker is a goroutine's entry in the idle list.
type worker struct {
	// work passes the next function to a parked worker; nil tells the worker to
	// exit. Its capacity is 1, and only the goroutine that took the worker off the
	// idle list sends: the send never blocks.
	work chan func()
}

// NewDispatcher returns a dispatcher without workers; Schedule starts them. With a
// spinner, a worker that has become idle polls for work before it parks.
func NewDispatcher(spinner *Spinner) *Dispatcher { return &Dispatcher{spinner: spinner} }

// Schedule runs fn on a worker and returns at once. fn must not panic.
//
// After Close it starts a goroutine for each fn, as the library's own
// dispatcher does: an actor that stops after Close still gets its last messages.
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

// Close makes the parked workers exit and waits for them. A worker that still
// runs a mailbox exits when that mailbox is empty; Close does not wait for it, so
// that a handler may call Close. Close may be called more than once.
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

// remove takes w off the idle list. It searches from the end: w parked last or nearly
// last. It returns false if w is not in the list: w has been given work, or told to exit.
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

// park puts w on the idle list. It returns false if w has to exit instead.
func (d *Dispatcher) park(w *worker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.idle) >= maxIdle {
		return false
	}
	d.idle = append(d.idle, w)
	return true
}

// unpark takes the worker that parked last off the idle list; nil: the list is
// empty.
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
