// Package lane is a queue of frames between two processes, in shared memory:
// one sends, the other receives, and no byte is written by both.
//
// # Use
//
// A lane is made of two segments. The sending process creates one and the
// receiving process the other; each formats its own, hands it over to be read,
// and then both begin:
//
//	geo, err := lane.Layout(id, 1<<20)
//	geo.FormatSender(own)                       // geo.SenderBytes() bytes
//	...                                         // exchange descriptors
//	s, err := lane.NewSender(geo, own, theirs, waker, lane.Options{})
//	err = s.Send(ctx, kind, head, body)         // parks while the lane is full
//
// At the other end, frames are read where they lie, as many as there are, and
// let go of at once:
//
//	for {
//		for frame, kind, ok := r.Next(); ok; frame, kind, ok = r.Next() {
//			handle(kind, frame)
//		}
//		r.Advance()
//		if err := r.Wait(ctx); err != nil {
//			return err
//		}
//	}
//
// [Sender.Reserve], [Sender.Commit] and [Sender.Publish] build frames in place
// and let any number of them cost one store and one look at the sleeper.
//
// The package works on bytes that it is given: memory mapped from a memfd, or
// the heap. It maps nothing and unmaps nothing.
//
// # Trust
//
// A side trusts the other with the contents of frames and with nothing else.
// Every head, flag and frame header of the peer is read once and checked
// before it is used: whatever the peer writes, the answer is [ErrPeer] and
// never a panic or a byte outside the lane. A lane that answered so is poisoned
// and stays so. The bytes of a frame remain the sender's to change while the
// receiver looks at them, so a receiver that does not trust its sender reads
// each byte once, or copies the frame first.
//
// A frame that the sender takes back, by clearing its header, is noticed when the
// sender waits for the room of frames that are not there. Until then that sender
// looks like one that has nothing to send, and a head or a counter that no
// longer moves looks like a slow peer.
//
// A peer can send too little, nothing, or a wake-up for nothing: watch its
// process and call Fail when it is dead. Three things are beyond a lane's means.
// An [Event] is one open file of both processes, and a peer that makes it
// blocking can hold a thread of ours; one that signals for ever keeps us busy; and one
// that reads it takes wake-ups of ours, those of Fail and Close too: closing
// the event ends the wait all the same. Against a peer that does such things, end the peer.
//
// Misuse by this process's own code panics.
//
// # Ordering
//
// Frames arrive in the order in which they were committed, each once. What was
// written before Publish is seen by whoever sees the frame. What was read
// before Advance was read before its room is used again.
//
// # Waiting
//
// Each side has a counter that is odd while it is asleep, in its own segment.
// The side that would sleep raises it, looks once more, and parks. The other
// side stores a header or its head and then looks at the counter. Both write first and
// look second, and Go's atomics are totally ordered, so that one of them sees
// the other. The counter tells two sleeps apart: each is answered at most once,
// however many frames follow before the sleeper is back.
//
// Waking a process costs microseconds, so a side looks for a bounded time before it
// parks; [Options] says for how long. A side that looks never yields the processor: a
// neighbour that computes would keep it for a whole slice. When a look was suspended for
// half a millisecond, no side of the process looks for a second or more. A parked side costs
// nothing and, on Linux, holds no thread.
//
// [Receiver.Wait] keeps its goroutine. [Receiver.Doze], [Receiver.Park] and
// [Receiver.Rouse] are its parts, for a goroutine that lets others receive while it is
// parked; [Receiver.Look] is for those.
//
// # Concurrency
//
// A [Sender] is for one goroutine at a time, and so is a [Receiver]. Fail, Close and
// [Sender.Err] may be called from any goroutine, and Park beside all others.
//
// # After a crash
//
// Frames are in the lane from the moment the header of the first of them is
// stored, which is the last of them to be. When the sender dies, all frames that
// it published can still be received, and nothing of one that it did not publish
// is visible. When the receiver dies, frames behind the
// head that it stored last were not let go of; the sender cannot tell which of
// them were handled. A death between a store and the wake-up that follows it
// leaves the other side asleep: Fail, called by whoever watches the process,
// wakes it.
package lane
