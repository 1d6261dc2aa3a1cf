package bus

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// A flow's credit is one word: how many deliveries are under way in the upper
// bits, and their bytes in the lower, so that both are taken and given back
// with one atomic addition.
const (
	countShift     = 40
	oneDelivery    = uint64(1) << countShift
	bytesMask      = oneDelivery - 1
	maxWindowBytes = int64(bytesMask)

	// noWindow is more deliveries than any byte window lets through before
	// their count would overflow.
	noWindow = 1 << (64 - countShift - 1)
)

// flow is the stream of one request on one edge. It is the unit of flow
// control: what a request has under way on an edge never limits another
// request.
type flow struct {
	edge     *edge
	req      *Request
	producer *Task // nil: the caller
	consumer *Task // nil: the caller

	// used is the credit taken, by the producer, and not yet given back, by
	// the consumer.
	used atomic.Uint64
	// retained is the part of used that waits for a possible replay.
	retained atomic.Int64

	// wanted is set while a producer sleeps in wake. Whoever makes credit or
	// a slot available looks at it afterwards. asleep lets one sleep at a
	// time: deliveries that were kept may be many goroutines' producers.
	sleepRight    lockorder.Right[lockorder.FlowAsleep]
	producerWaits atomic.Bool
	// exclusive is set while a payload that passes alone waits for all others to be finished.
	// Nothing passes it by then, so that small ones that keep coming do not hold it up for good.
	exclusive atomic.Bool
	wake      chan struct{}
	waitBegan atomic.Int64 // when the producer began to wait, unix nanoseconds; 0: it does not

	// Producer's side, guarded by its outlet's mutex.
	seq            uint64
	mark           uint64 // seq before the delivery being handled, for redelivery
	attempt        uint32
	ended          bool // the stream has ended
	endPending     bool // the consumer, which has no slot, is told of that when it gets one
	sent           sent
	connectorSends atomic.Uint64 // payloads that went by the edge's connector: see key

	// direct is set when deliveries may go from one process to another, past
	// this one.
	direct  atomic.Pointer[DirectPath]
	counted bool // all of what went there is in sent, which changes no more; guarded by the outlet's mutex

	// queue holds what the producer sent beyond the window, on edges that
	// queue. queued mirrors its length.
	qmu           lockorder.Mutex[lockorder.FlowQueue]
	queue         []*Delivery
	queueBuf      [1]*Delivery // the memory of a queue that is fed
	queuedBytes   int64
	nextForwarded uint64 // the sequence behind the last one handed on
	queued        atomic.Int32
	queuedSince   atomic.Int64 // when the queue last moved while it held something; 0: it is empty

	in inflow
}

// inflow is the consumer's side of a flow, touched by its goroutine only.
type inflow struct {
	expect  uint64
	eos     bool        // the end of the stream has come
	bareEnd bool        // ... as a delivery without payload
	parked  []*Delivery // waiting in a join, oldest first
}

// outputs is the producer's, which sends on the flow.
func (f *flow) outputs() *outputs {
	if f.producer == nil {
		return &f.req.inputs
	}
	return &f.producer.outputs
}

// consumerOpen reports whether the consumer has a place for this request.
func (f *flow) consumerOpen() bool {
	return f.consumer == nil || f.consumer.slot.Load() != nil
}

// tryTakeCredit takes credit for one delivery of the given cost. The end of a stream
// costs nothing.
func (f *flow) tryTakeCredit(cost int64) bool {
	if !f.consumerOpen() {
		return false
	}
	if cost == 0 {
		return true
	}
	for {
		u := f.used.Load()
		if u>>countShift >= f.edge.window || int64(u&bytesMask)+cost > f.edge.windowBytes {
			return false
		}
		if f.used.CompareAndSwap(u, u+(oneDelivery|uint64(cost))) {
			return true
		}
	}
}

// full reports whether there is no credit for one more delivery like those under way.
func (f *flow) full() bool {
	u := f.used.Load()
	n, bytes := u>>countShift, int64(u&bytesMask)
	return n >= f.edge.window || n > 0 && bytes+bytes/int64(n) > f.edge.windowBytes
}

// giveCredit returns credit and lets in whoever waits for it.
func (f *flow) giveCredit(credit uint64) {
	if credit != 0 {
		f.used.Add(-credit)
	}
	f.resumeProducer()
}

// resumeProducer is called after something changed that may let the producer go on.
func (f *flow) resumeProducer() {
	if f.queued.Load() > 0 {
		f.flush()
	}
	if f.producerWaits.Load() {
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// tryTakeWithSlot is tryTake for the first delivery too: it takes a free slot at the
// consumer if the request has none.
func (f *flow) tryTakeWithSlot(cost int64) bool {
	if f.exclusive.Load() {
		return false
	}
	if f.tryTakeCredit(cost) {
		return true
	}
	if f.consumerOpen() {
		return false
	}
	f.req.wantSlot(f.consumer)
	return f.tryTakeCredit(cost)
}

// waitForCredit waits for credit, until the request is over or cancel is closed.
func (f *flow) waitForCredit(cost int64, cancel <-chan struct{}) error {
	lockorder.AssertNone("an emission waits")
	if !f.sleepRight.TryLock() {
		select {
		case <-cancel: // it may not wait, for another either
			return ErrCanceled
		default:
			f.sleepRight.Lock()
		}
	}
	defer f.sleepRight.Unlock()
	f.exclusive.Store(cost == f.edge.windowBytes)
	defer f.exclusive.Store(false)
	if f.wake == nil {
		f.wake = make(chan struct{}, 1)
	}
	f.waitBegan.Store(time.Now().UnixNano())
	f.producerWaits.Store(true)
	defer func() {
		f.producerWaits.Store(false)
		f.waitBegan.Store(0)
	}()
	f.req.wantSlot(f.consumer)
	for {
		open := f.consumerOpen() // before the try, so that a slot granted after it is tried too
		if f.tryTakeCredit(cost) {
			return nil
		}
		if err := f.waitError(cost, open); err != nil {
			return err
		}
		select {
		case <-f.wake:
		case <-f.req.done:
			return f.req.cause()
		case <-cancel:
			return ErrCanceled
		}
	}
}

// waitError says why waiting for credit is no use, after it was refused while
// the consumer was open or not.
func (f *flow) waitError(cost int64, open bool) error {
	switch {
	case f.consumer != nil && f.consumer.stay.Load() == stayLeft && !f.req.over():
		return ErrAfterEnd
	case f.exceedsReplayWindow(cost):
		return ErrReplayFull
	case f.edge.spec.Policy == Fail && open:
		return ErrWindowFull
	}
	return nil
}

// exceedsReplayWindow reports whether there will never be credit for so many bytes beside what is
// kept for a replay.
func (f *flow) exceedsReplayWindow(cost int64) bool {
	return f.retained.Load()+cost > f.edge.windowBytes
}

// push sends d on a queueing flow: at once if there is credit and nothing is
// queued before it, else it waits in the queue. It never blocks.
func (f *flow) push(d *Delivery, after *AfterUnlock) {
	f.qmu.Lock()
	f.queue = append(f.queue, d)
	f.queuedBytes += d.cost
	f.noteQueue()
	f.sendQueued(after)
	for f.edge.spec.Policy == DropOldest && f.queuedPayloads() > f.edge.window && f.dropOldest(after) {
		continue
	}
	f.qmu.Unlock()
	if f.blocked() {
		after.unblock(f)
	}
}

// feed takes in a delivery that another process has numbered and that has its
// place in the windows there.
func (f *flow) feed(d *Delivery, after *AfterUnlock) {
	d.flow = f
	d.Request, d.Deadline, d.Trace, d.Edge = f.req.id, f.req.deadline, f.req.trace, f.edge.name
	f.qmu.Lock()
	if f.queue == nil {
		f.queue = f.queueBuf[:0]
	}
	f.queue = append(f.queue, d)
	f.noteQueue()
	f.sendQueued(after)
	f.qmu.Unlock()
	if f.blocked() {
		after.unblock(f)
	}
}

// blocked reports whether what is queued waits for more than credit.
func (f *flow) blocked() bool { return !f.consumerOpen() || f.req.endedEarly() }

// unblock has what is queued go on: with a slot at the consumer, or nowhere when the request
// is over.
func (f *flow) unblock() {
	if !f.consumerOpen() {
		f.req.wantSlot(f.consumer)
	}
	if f.req.endedEarly() {
		f.discardQueue()
	}
}

// flush sends what the credit allows, and tells a producer that was held back.
func (f *flow) flush() {
	var after AfterUnlock
	f.qmu.Lock()
	before := len(f.queue)
	f.sendQueued(&after)
	drained := before > 0 && len(f.queue) == 0
	f.qmu.Unlock()
	after.Run()
	if drained && f.producer != nil {
		f.producer.wake()
	}
}

// sendQueued is called with qmu held, so that order is kept.
func (f *flow) sendQueued(after *AfterUnlock) {
	sent := 0
	for sent < len(f.queue) && !f.req.endedEarly() && f.tryTakeCredit(f.queue[sent].cost) {
		d := f.queue[sent]
		f.queuedBytes -= d.cost
		sent++
		// Numbers are given without gaps: one that shows now was dropped here.
		// What a retry sends again was handed on, or dropped, before.
		if d.Seq >= f.nextForwarded && !f.edge.fed {
			d.Dropped = d.Seq - f.nextForwarded
			f.nextForwarded = d.Seq + 1
		}
		f.deliver(d, after)
	}
	if sent > 0 {
		n := copy(f.queue, f.queue[sent:])
		clear(f.queue[n:])
		f.queue = f.queue[:n]
		f.noteQueue()
	}
	if len(f.queue) > 0 && f.exceedsReplayWindow(f.queue[0].cost) && !f.req.endedEarly() {
		d := f.queue[0] // nobody waits who could be told
		err := &StageError{Stage: f.outputs().name(), Edge: f.edge.name, Key: d.Key, Seq: d.Seq, Err: ErrReplayFull}
		after.Fail(f.req, err)
	}
}

// noteQueue, with qmu held, mirrors the queue's length for those without.
func (f *flow) noteQueue() {
	f.queued.Store(int32(len(f.queue)))
	if len(f.queue) == 0 {
		f.queuedSince.Store(0)
	} else {
		f.queuedSince.Store(time.Now().UnixNano())
	}
}

// queuedPayloads counts the queue without a bare end of the stream.
func (f *flow) queuedPayloads() uint64 {
	n := len(f.queue)
	if n > 0 && f.queue[n-1].Bare() {
		n--
	}
	return uint64(n)
}

// dropOldest, with qmu held, drops the oldest queued delivery unless it is the
// end of the stream.
func (f *flow) dropOldest(after *AfterUnlock) bool {
	if len(f.queue) == 0 || f.queue[0].EOS {
		return false
	}
	d := f.queue[0]
	f.queue = append(f.queue[:0], f.queue[1:]...)
	f.queuedBytes -= d.cost
	f.noteQueue()
	f.edge.dropped.Add(1)
	after.drop(d)
	return true
}

// makeQueueSpace drops queued deliveries until one of the given cost fits into the
// queue. On an edge that does not drop, it says that the queue is full.
func (f *flow) makeQueueSpace(cost int64) error {
	var after AfterUnlock
	defer after.Run()
	f.qmu.Lock()
	defer f.qmu.Unlock()
	for f.queuedBytes+cost > f.edge.windowBytes {
		if f.edge.spec.Policy != DropOldest {
			return ErrWindowFull
		}
		if !f.dropOldest(&after) {
			break
		}
	}
	return nil
}

// discardQueue drops the whole queue of a request that is over.
func (f *flow) discardQueue() {
	f.qmu.Lock()
	q := f.queue
	f.queue, f.queuedBytes = nil, 0
	f.noteQueue()
	f.qmu.Unlock()
	for _, d := range q {
		d.discard()
	}
}

// deliver puts d, whose credit is taken, in order at the consumer. The locks of the stream
// are held.
func (f *flow) deliver(d *Delivery, after *AfterUnlock) {
	if f.consumer == nil {
		switch {
		case f.edge.toOwner:
			f.req.sendToOwner(d, after)
		case f.req.sink != nil:
			f.req.sendToSink(d, after)
		case !f.req.results.push(d): // the request is over: credit is of no use
			after.drop(d)
		}
		return
	}
	s := f.consumer.slot.Load()
	if s == nil { // the request is over, its slot given back: credit is of no use
		after.drop(d)
		return
	}
	if f.consumer.stage.remote != nil && !f.edge.queues() {
		after.runActor(s.worker.actor.Queue(d)) // which runs no user's code
		return
	}
	s.worker.actor.Post(d)
}

// accept checks that d is the next of its stream. It reports false for a
// duplicate, which a retry may send.
func (f *flow) accept(d *Delivery) (bool, error) {
	in := &f.in
	next := in.expect + d.Dropped
	switch {
	case f.edge.fed: // checked by whoever feeds it
		in.expect = d.Seq + 1
		in.eos, in.bareEnd = in.eos || d.EOS, d.EOS && d.Bare()
		return true, nil
	case d.Seq == next && !in.eos:
		in.expect = d.Seq + 1
		in.eos, in.bareEnd = d.EOS, d.EOS && d.Bare()
		return true, nil
	case d.Seq < in.expect && d.Attempt > 0:
		f.edge.duplicates.Add(1)
		return false, nil
	case d.Seq < in.expect:
		return false, fmt.Errorf("%w: sequence %d came again, %d was next", ErrSequence, d.Seq, in.expect)
	case in.eos:
		return false, fmt.Errorf("%w: sequence %d came behind the end of the stream", ErrSequence, d.Seq)
	default:
		return false, fmt.Errorf("%w: sequence %d is missing, %d came instead", ErrSequence, next, d.Seq)
	}
}
