// Package lane carries tensors from process to process in the memory of GPUs.
//
//	l, err := lane.Open(ctx, lane.Options{Driver: driver, Directory: directory})
//	s := l.Sender(store.Arena(), lookAgain)
//	...
//	o, err := s.Plan(ctx, value, lane.Pool, 0, 0, free) // tensors at any depth of value
//	dev, n := o.On()
//	r, piece, err := store.ReserveOn(dev, n, o.Size(), codec.IDBundle, charge)
//	o.Reserved(piece)
//	err = o.Publish(ctx)                 // else fall back, and reserve once more
//	err = o.Fill(ctx, r.Bytes(), stream)
//	h, err := r.Commit(o.Size(), 0) // and send h
//	...
//	m, err := l.Open(ctx, lease.Bytes()) // where h arrived
//	m.OnSettled(lease.Release)
//	err = m.Await(stream)                // then read m.Value()
//	err = m.Close()
//
// Package bus does all this for the edges of a pipeline.
//
// # Who owns what
//
// A message is one object of the sender's store. Its payload is a bundle (see
// codec/bundle), which says where the tensors are; those in a GPU's memory lie in
// one chunk, which is the object's piece of the pool (see cudaipc/pool). So a
// chunk is freed when the object is, and debts, pins and eviction decide that, as
// for every payload: readers that die give up both at once. So a payload with a piece
// is always in the store: in a message, or on the heap, it would have no lifetime.
//
// # Words
//
// Copies run while messages travel. What orders them are words of 32 bits, each of
// which one process writes:
//
//	ready, fault   of a piece    the sender's streams, behind the copies; its CPU, when they failed
//	mirror         of a message  the receiver's watcher: what ready says, or that the sender is dead
//	ack            of a message  the receiver's stream, behind what it reads
//
// They are compared in a circle with the piece's generation. A receiver's streams wait
// for the mirror, never for another process's word: so no stream waits for the dead.
// The lease goes when the ack has come, whatever order messages finish in. One
// goroutine in a process watches words, while there is anything to watch for; nothing
// asks a GPU.
//
// # Host memory
//
// Tensors that do not travel on a GPU lie in the payload. A GPU copies from there and
// to there at full speed when it was told of the memory, once: [Lane.Sender] tells
// it of the store, [Sender.Mapped] of large objects, [Lane.Mapped] of what is mapped of
// other processes' stores. What it refuses is copied through a staging buffer, and
// [Stats] says so.
//
// # Trust
//
// What a payload says of device memory is checked against what its owner has
// published, be that the descriptor of an arena or its handle: a place that is not
// there is [ErrForged], one on a GPU that this process does not see
// [ErrForeignDevice]. A process that is given an arena can write to it, as CUDA
// offers nothing else: memory is shared with processes of the same user, through a
// directory that knows them.
//
// # What a crash leaves
//
// A dead receiver's leases are dropped with its debts. A dead sender's arenas stay
// mapped where they are read; tensors that were complete stay so, others are
// poisoned: waiting ends, and [ErrPoisoned] says why what was read is garbage. When
// a GPU fails, all of a process's messages on it end; host memory goes on.
//
// # Freeing memory
//
// Drivers make whoever frees device memory wait for what the GPU has been given,
// which includes waits for other processes. Free it in release functions, which
// run on goroutines of their own, or in stream order.
package lane
