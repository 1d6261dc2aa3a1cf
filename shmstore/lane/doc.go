// Package lane is a queue of frames between two processes, in shared memory:
// one sends, the other receives, and each byte is written by only one of them.
//
// # Use
//
// A lane is made of two segments. The sending process creates one and the
// receiving process the other; each formats its own segment, gives the peer read
// access to it, and then both begin:
//
//	geo, err := lane.Layout(id, 64<<10)
//	geo.FormatSender(own)                       // geo.SenderBytes() bytes
//	...                                         // exchange descriptors
//	s, err := lane.NewSender(geo, own, theirs, wake)
//	err = s.TrySend(kind, payload)              // lane.ErrFull: there is no space now
//
// The receiver reads all frames that are there in place, and then frees all of them with
// one call:
//
//	for frame, kind, ok := r.Next(); ok; frame, kind, ok = r.Next() {
//		handle(kind, frame)
//	}
//	r.Advance()
//
// A lane has no means of its own to wait. A sender that finds no space sends by other means,
// or later. A receiver that wants to sleep announces it in the lane, and then waits for the
// sender's function wake: in package internal/peer, on the socket beside the lane.
//
// The package works on bytes that it is given: memory mapped from a memfd, or
// the heap. It maps nothing and unmaps nothing.
//
// # Trust
//
// A side trusts the other with the contents of frames and with nothing else.
// Every head, counter and frame header of the peer is read once and checked
// before it is used: an invalid value is [ErrPeer], and
// never a panic or an access outside the lane. A side that returned ErrPeer returns it from
// then on. The sender can change the bytes of a frame while the
// receiver reads them, so a receiver that does not trust its sender reads
// each byte once, or copies the frame first.
//
// A peer can send too little, nothing, or a wake-up without a frame. If a sender clears the
// header of a frame again, the receiver finds no frame. A head that no longer moves is the
// same as a slow receiver. A wrong sleep counter costs the sender wake-ups, or the receiver
// its own wake-up. A lane does not notice the death of a peer: watch its process, or its
// socket.
//
// Misuse by this process's own code panics.
//
// # Ordering
//
// Frames arrive in the order in which they were sent, each once. Writes before TrySend
// happen before the receiver gets the frame. Reads before Advance happen before the sender
// uses the space again.
//
// # Sleeping
//
// The receiver's segment has a counter that is odd while the receiver sleeps.
// [Receiver.PrepareSleep] raises the counter and then checks once more for a frame.
// [Sender.TrySend] stores a header and then reads the counter. Both write first and
// read second, and Go's atomics are totally ordered, so that one of them sees
// the other. Each sleep has its own value of the counter: the sender wakes the receiver at
// most once for it, however many frames follow before the receiver runs.
// [Receiver.EndSleep] ends a sleep.
//
// A sender may wake the receiver by means other than the function wake: [Sender.ReceiverSleeps]
// reports whether it must, and [Sender.MarkWoken] records it.
//
// Waking a process costs microseconds, so a receiver polls for a bounded time
// ([Receiver.Poll]) before it sleeps, or beside the goroutine that sleeps; [Options] bound
// the time. A poll never yields the processor: a thread that computes would keep it for a
// whole slice. When a poll was suspended for half a millisecond, no receiver of the process
// polls for a second or more, except those with [Polling].
//
// # Concurrency
//
// A [Sender] is for one goroutine at a time, and so is a [Receiver].
//
// # After a crash
//
// A frame is published when its header, or that of the skip before it, is stored; all its
// other bytes are stored before. When the sender dies, all frames that
// it published can still be received, and nothing of an unpublished one
// is visible. When the receiver dies, the frames behind the
// head that it stored last are not freed; the sender cannot tell which of
// them were handled. A sender that dies between a frame and the wake-up that follows
// it leaves the receiver asleep: the watch on the sender's process or socket must wake it.
package lane
