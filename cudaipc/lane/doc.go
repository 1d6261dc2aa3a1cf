// Package lane carries tensors from process to process in the memory of GPUs.
//
//	l, err := lane.Open(ctx, lane.Options{Driver: driver, Directory: directory})
//	s := l.Sender(store.Arena(), onSpace)
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
// # Ownership
//
// A message is one object of the sender's store. Its payload is a bundle (see codec/bundle), which
// contains the positions of the tensors; those in a GPU's memory lie in one chunk, which is the
// object's piece of the pool (see cudaipc/pool). So a chunk is freed with its object, under the
// store's rules of debts, pins and eviction, and a reader that dies releases both at once. A
// payload with a piece is therefore always in the store: inside a message, or on the heap, it would
// have no lifetime.
//
// # Words
//
// Copies run while messages travel. Words of 32 bits order them; each word is written by one
// process:
//
//	ready, fault   of a piece    the sender's streams, after the copies; its CPU, after a failure
//	mirror         of a message  the receiver's watcher: the value of ready, or the end of the sender
//	ack            of a message  the receiver's stream, after its reads
//
// They are compared with the piece's generation, with wraparound. A receiver's streams wait for the
// mirror, never for another process's word: so no stream waits for a dead process. The lease is
// released after the ack, in any order of the messages. One goroutine of a process watches words,
// while there are any to watch; it does not poll the GPU.
//
// # Host memory
//
// Tensors that do not travel on a GPU lie in the payload. A GPU copies from and to the payload at
// full speed if its memory is registered, once: [Lane.Sender] registers the store, [Sender.Mapped]
// large objects, [Lane.Mapped] mapped memory of other processes' stores. Memory that the GPU
// refuses is copied through a staging buffer, and [Stats] counts it.
//
// The registered segment of a large object that is gone is kept for the next object of that size.
// If other objects need the space, the store unmaps it when the GPU has forgotten it. Until then it
// takes space in the store, and for good if the GPU refuses to forget it.
//
// # Trust
//
// The positions in device memory that a payload contains are checked against the descriptor or the
// handle that its owner has published: a position that does not exist is [ErrForged], one on a GPU
// that this process does not see [ErrForeignDevice]. A process that receives an arena can write to
// it, because CUDA offers no read-only sharing: memory is shared with processes of the same user,
// through a directory that verifies them.
//
// # Crashes
//
// A dead receiver's leases are dropped with its debts. A dead sender's arenas stay mapped while
// they are read; complete tensors stay valid, others are poisoned: waits end, and [ErrPoisoned]
// says that the bytes that were read are garbage. When a GPU fails, all of a process's messages on
// it end; host memory continues to work.
//
// # Locks
//
// The locks of this package come after those of a bus, and have no classes (package
// internal/lockorder).
//
//   - A long operation holds a lock of its own, which comes before the mu of the same type:
//     Lane.openMu (a GPU is opened), device.wordsMu (its words are made), Sender.makeMu (a pool is
//     made), ownArena.publishMu, imports.openMu (a pool of another process is opened) and
//     imported.mapMu (an arena is mapped). Drivers and the [Directory] are called under them. A
//     goroutine waits for the last four no longer than a context.
//   - The locks named mu of Lane, Sender, device, imports and imported guard data. No goroutine
//     waits or calls a driver under them, except in device.close. Sender.mu comes before lent.mu
//     and the lock of the pool, imports.mu before imported.mu.
//   - hostMap.mu is held while a GPU registers the memory, and comes before Lane.mu. Message.mu is
//     held while streams are made to wait, and comes before gate.mu, watcher.mu and the locks of
//     the device. No lock is taken under maps.mu, lent.mu, gate.mu and watcher.mu.
//   - The watcher calls no driver, and takes no lock under which a driver is called: such a call
//     may wait for words that the watcher writes.
//
// # Freeing memory
//
// A call that frees device memory waits, in the driver, for the GPU's submitted operations, which
// include waits for other processes. Free device memory in release functions, which run on
// goroutines of their own, or in stream order.
package lane
