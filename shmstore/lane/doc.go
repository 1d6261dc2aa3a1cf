// Package lane is a queue of frames between two processes, in shared memory:
// one sends, the other receives, and no byte is written by both.
//
// # Use
//
// A lane is made of two segments. The sending process creates one and the
// receiving process the other; each formats its own, hands it over to be read,
// and then both begin:
//
//	geo, err := lane.Layout(id, 64<<10)
//	geo.FormatSender(own)                       // geo.SenderBytes() bytes
//	...                                         // exchange descriptors
//	s, err := lane.NewSender(geo, own, theirs, wake)
//	err = s.TrySend(kind, payload)              // lane.ErrFull: there is no room now
//
// At the other end, frames are read where they lie, as many as there are, and
// let go of at once:
//
//	for frame, kind, ok := r.Next(); ok; frame, kind, ok = r.Next() {
//		handle(kind, frame)
//	}
//	r.Advance()
//
// A lane has no means of its own to wait. A sender that finds no room sends by other means,
// or later. A receiver that would sleep says so by the lane, and sleeps on something that
// the sender's function wake ends: in package internal/peer, on the socket beside the
// lane.
//
// The package works on bytes that it is given: memory mapped from a memfd, or
// the heap. It maps nothing and unmaps nothing.
//
// # Trust
//
// A side trusts the other with the contents of frames and with nothing else.
// Every head, counter and frame header of the peer is read once and checked
// before it is used: whatever the peer writes, the answer is [ErrPeer] and
// never a panic or a byte outside the lane. A side that answered so answers so from then
// on. The bytes of a frame remain the sender's to change while the
// receiver looks at them, so a receiver that does not trust its sender reads
// each byte once, or copies the frame first.
//
// A peer can send too little, nothing, or a wake-up for nothing. A sender that takes a
// frame back, by clearing its header, looks like one that has nothing to send. A head that
// no longer moves looks like a slow receiver, and a counter that lies about being asleep
// costs wake-ups, or the receiver's own. A lane does not notice the death of a peer: watch
// its process, or its socket.
//
// Misuse by this process's own code panics.
//
// # Ordering
//
// Frames arrive in the order in which they were sent, each once. What was
// written before TrySend is seen by the receiver of the frame. What was read
// before Advance was read before its room is used again.
//
// # Sleeping
//
// The receiver has a counter that is odd while it sleeps, in its own segment.
// [Receiver.Doze] raises the counter and looks once more for a frame. [Sender.TrySend]
// stores a header and then looks at the counter. Both write first and
// look second, and Go's atomics are totally ordered, so that one of them sees
// the other. The counter tells two sleeps apart: each is answered at most once,
// however many frames follow before the receiver is back. [Receiver.Rouse] ends a sleep.
//
// A sender that wakes the receiver by other means than its function says so with
// [Sender.Woken], and learns from [Sender.Sleeps] whether there is need.
//
// Waking a process costs microseconds, so a receiver looks for a bounded time
// ([Receiver.Look]) before it sleeps, or beside the goroutine that sleeps; [Options] say for
// how long. A look never yields the processor: a neighbour that computes would keep it for a
// whole slice. When a look was suspended for half a millisecond, no receiver of the process
// looks for a second or more, but those of [Polling].
//
// # Concurrency
//
// A [Sender] is for one goroutine at a time, and so is a [Receiver].
//
// # After a crash
//
// A frame is in the lane from the moment its header is stored, or that of the skip before
// it, which is the last of its bytes to be. When the sender dies, all frames that
// it published can still be received, and nothing of one that it did not publish
// is visible. When the receiver dies, frames behind the
// head that it stored last were not let go of; the sender cannot tell which of
// them were handled. A sender that dies between a frame and the wake-up that follows
// it leaves the receiver asleep: what tells the receiver of the death must wake it.
package lane
