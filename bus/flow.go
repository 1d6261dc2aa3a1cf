package bus

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// A flow's used credit is one word: the number of deliveries in flight in the
// upper bits, and their bytes in the lower bits, so that one atomic addition
// takes or returns both.
const (
	countShift     = 40
	oneDelivery    = uint64(1) << countShift
	bytesMask      = oneDelivery - 1
	maxWindowBytes = int64(bytesMask)

	// noWindow is the window of an edge with Unbounded: half of what the count can
	// hold, so that the count does not overflow.
	noWindow = 1 << (64 - countShift - 1)
)

// flow is the stream of one request on one edge. It is the unit of flow
// control: deliveries of one request never use credit of another.
type flow struct {
	edge     *edge
	req      *Request
	producer *Task // nil: the caller
	consumer *Task // nil: the caller

	// used is the credit that the producer has taken and the consumer has not returned.
	used atomic.Uint64
	// retained is the part of used for input that is kept for a replay.
	retained atomic.Int64

	// producerWaits is set while a producer sleeps on wake. A goroutine first
	// returns credit or grants a slot, and then reads producerWaits, so that no wake
	// is lost. sleepRight lets one producer sleep at a time: a handler with kept
	// deliveries may emit from many goroutines.
	sleepRight    lockorder.Right[lockorder.FlowSleep]
	producerWaits atomic.Bool
	// exclusive is set while a payload that takes the whole byte window waits until all other payloads
	// are finished. No other payload takes credit then: small payloads cannot starve the large one.
	exclusive atomic.Bool
	wake      chan struct{}
	waitBegan atomic.Int64 // when the producer began to wait, in Unix nanoseconds; 0: it does not wait

	// The producer's side, guarded by the mutex of its outputs.
	seq            uint64
	mark           uint64 // seq where the present handling began, for a retry
	attempt        uint32
	ended          bool // the stream has ended
	endPending     bool // the end is sent when the consumer gets a slot
	sent           sent
	connectorSends atomic.Uint64 // payloads sent by the edge's connector: see flow.key

	// direct is set while the stream has a direct path between two other processes.
	direct  atomic.Pointer[DirectPath]
	counted bool // sent is final, and includes the totals of the direct path; guarded by the mutex of the outputs

	// queue holds the deliveries beyond the window, on edges that queue. queued
	// mirrors its length.
	qmu           lockorder.Mutex[lockorder.FlowQueue]
	queue         []*Delivery
	queueBuf      [1]*Delivery // the first memory of the queue, on an edge that is fed
	queuedBytes   int64
	nextForwarded uint64 // one more than the highest sequence that has left the queue
	queued        atomic.Int32
	queuedSince   atomic.Int64 // when the queue, or an end that waits for a slot, last changed; 0: nothing waits

	in inflow
}

// inflow is the consumer's side of a flow. Only the consumer's goroutine uses it.
type inflow struct {
	expect  uint64
	eos     bool        // the end of the stream has come
	bareEnd bool        // the end was a delivery without payload
	parked  []*Delivery // waiting in a join, oldest first
}

// outputs are the producer's outputs, which send on the flow.
func (f *flow) outputs() *outputs {
	if f.producer == nil {
		return &f.req.inputs
	}
	return &f.producer.outputs
}

// consumerOpen reports whether the request has a slot at the consumer, or the consumer is the caller.
func (f *flow) consumerOpen() bool {
	return f.consumer == nil || f.consumer.slot.Load() != nil
}

// tryTakeCredit takes credit for one delivery of the given cost. The end of a stream
// costs nothing. It reports false while the consumer is not open, or there is no credit.
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

// full reports whether there is no credit for one more delivery of the average size of those in flight.
func (f *flow) full() bool {
	u := f.used.Load()
	n, bytes := u>>countShift, int64(u&bytesMask)
	return n >= f.edge.window || n > 0 && bytes+bytes/int64(n) > f.edge.windowBytes
}

// giveCredit returns credit and resumes the producer.
func (f *flow) giveCredit(credit uint64) {
	if credit != 0 {
		f.used.Add(-credit)
	}
	f.resumeProducer()
}

// resumeProducer sends queued deliveries and wakes a waiting producer. It is called after credit was
// returned, or the consumer got a slot.
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

// tryTakeWithSlot is tryTakeCredit, and takes a free slot at the consumer if
// the request has none.
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
		case <-cancel: // cancel forbids every wait, also that for the other producer
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
		open := f.consumerOpen() // read before the try: a try that fails without a slot finds no full window
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

// waitError is the error of a wait for credit that cannot succeed, or that the
// policy forbids; nil: the producer waits. open says whether the consumer was
// open when credit was refused.
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

// exceedsReplayWindow reports whether cost and the input retained for a replay exceed the byte window
// together. Such a delivery gets no credit while that input is retained.
func (f *flow) exceedsReplayWindow(cost int64) bool {
	return f.retained.Load()+cost > f.edge.windowBytes
}

// push sends d on a flow with a queue: at once if there is credit and the queue is
// empty, else d waits in the queue. If the policy is DropOldest and the queue is then
// longer than the window, push drops from it. It never blocks.
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

// feed sends or queues a delivery of another process, which has numbered it and
// keeps the edge's window.
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

// blocked reports whether the queue waits for a slot, or its request has ended early.
func (f *flow) blocked() bool { return !f.consumerOpen() || f.req.endedEarly() }

// unblock asks for a slot at the consumer of the queue, or discards the queue of a request that has
// ended early.
func (f *flow) unblock() {
	if !f.consumerOpen() {
		f.req.wantSlot(f.consumer)
	}
	if f.req.endedEarly() {
		f.discardQueue()
	}
}

// flush sends queued deliveries for which there is credit, and wakes the producer's task when the queue is empty.
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

// sendQueued, with qmu held, sends the queued deliveries for which there is credit, in order.
func (f *flow) sendQueued(after *AfterUnlock) {
	sent := 0
	for sent < len(f.queue) && !f.req.endedEarly() && f.tryTakeCredit(f.queue[sent].cost) {
		d := f.queue[sent]
		f.queuedBytes -= d.cost
		sent++
		// Sequences enter the queue without gaps: a gap here is the number of
		// dropped deliveries. The sequences that a retry repeats are below
		// nextForwarded, and show no gap.
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
		d := f.queue[0] // no producer waits for the error: the request fails
		err := &StageError{Stage: f.outputs().name(), Edge: f.edge.name, Key: d.Key, Seq: d.Seq, Err: ErrReplayFull}
		after.Fail(f.req, err)
	}
}

// noteQueue, with qmu held, mirrors the queue's length for readers without the lock.
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

// makeQueueSpace drops queued deliveries until the queue has space for one of the
// given cost, or only the end of the stream is left in it. The queue has space for
// one byte window. On an edge that does not drop, a full queue is ErrWindowFull.
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

// deliver passes d, whose credit is taken, to the consumer, in order. The caller holds the mutex of the
// outputs, or qmu on an edge that queues or is fed.
func (f *flow) deliver(d *Delivery, after *AfterUnlock) {
	if f.consumer == nil {
		switch {
		case f.edge.toOwner:
			f.req.sendToOwner(d, after)
		case f.req.sink != nil:
			f.req.sendToSink(d, after)
		case !f.req.results.push(d): // the caller has closed the results: no producer needs the credit
			after.drop(d)
		}
		return
	}
	s := f.consumer.slot.Load()
	if s == nil { // the request is over and has returned its slot: no producer needs the credit
		after.drop(d)
		return
	}
	if f.consumer.stage.remote != nil && !f.edge.queues() {
		after.runActor(s.worker.actor.Queue(d)) // the actor of a remote stage runs no user code
		return
	}
	s.worker.actor.Post(d)
}

// accept checks that d is the next delivery of its stream, after the dropped ones that d counts. It
// reports false for a duplicate that a retry has sent; any other delivery out of order is
// ErrSequence.
func (f *flow) accept(d *Delivery) (bool, error) {
	in := &f.in
	next := in.expect + d.Dropped
	switch {
	case f.edge.fed: // the process that feeds it has checked the order
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
