// Package shmstore keeps payloads in memory that many processes read and one
// writes: a single-writer object store over the ring of package ringbuf.
//
// # Use
//
// A producer puts an object, or reserves room, fills it in place and commits.
// It gets a [Handle], a small plain value, and sends it to the consumers it
// charged. A consumer turns the handle into a [Lease], reads, and releases the
// lease once. No byte is copied, and nothing is ever freed that somebody
// holds: room comes back lazily, when the writer needs it, from the oldest
// objects that all their readers have finished with. Until then an object
// stays readable by its handle.
//
// Objects above Options.LargeObjectBytes get a segment of their own beside the
// arena, so that one of them cannot fill it. All else is the same for them, but
// that a reader in another process must be given the segment before it can read:
// [Store.LargeSegment] and [Reader.AddSegment]. Devices can be told of it, too, which have
// to forget it before it is unmapped: [Store.OnLarge].
//
//	h, err := store.Put(data, shmstore.Readers(1, 2))  // the writer
//	...
//	lease, err := reader.Take(h)                           // readers 1 and 2
//	defer lease.Release()
//	use(lease.Bytes())
//
// An object may hold a piece of another memory beside its bytes, which the store
// does not map: that of a GPU, say. [Store.ReserveOn] asks a [Device] for it, and
// the piece is freed exactly when the object is. So debts, pins, evictions and
// the death of readers work for both memories, and nobody counts anything twice.
// Room on a device comes from the oldest settled objects that hold pieces of it.
//
// # Memory
//
// No access fails for want of memory: room has all its pages before it is given out. A
// store takes the pages of its whole arena when it is made, or, with Options.Reuse, as
// payloads come to need more of it than ever before; where the machine has no more then,
// the store is full with what it has. Readers of such a store know a [Segment] whose pages
// come later by [OpenFillingSegment].
//
// A process in Python reads as one in Go does, on x86-64 and arm64: omnibus.store of the Python client. It owns a
// store, too: omnibus.keyed.
//
// # Who writes what
//
// Every shared byte has exactly one writing process. Nothing is locked, and
// nothing is compared and swapped, across processes; layout.go draws the
// segments to the byte. The owner writes payloads, directory and accounts; each
// reader writes its own ledger.
//
// Within the owner's process the writer shares three things with others. The
// holder of a reservation writes the payload, and the size and codec of its line,
// until Commit, which moves the word on from reserved; after that no process
// writes them. Commit and [Lease.Share] add debts of the local reader, with atomic
// additions. And what a reader has collected (taken) is its own, on its heap, by
// compare and swap; so are account and ledger of a reader of the owner's process.
// The ring, slots in use and charged readers are on the writer's heap and
// need no synchronization.
//
// # Peers that keep no accounts
//
// A process without a ledger can share memory all the same. A [Segment] is one piece of
// memory with one writing process, which knows which parts of it are in use, and whom
// to ask when they are not any more.
//
// # The life of an object
//
//	         Reserve           Commit                       settled, no pin
//	(empty) ---------> reserved ------> live <-----> closing --------------> (empty)
//	 free(0)           free(g)  |      live(g)  pin  closing(g)               free(0)
//	                            | Abort
//	                            +-----> aborted(g) ----- next scan ----------> (empty)
//
// A slot and its room come back in one place, which frees what the object holds of
// a device too: Store.vacate, for an object that an eviction found settled. A store
// with Options.Reuse looks for some with each reservation; every store does when room
// or slots run out, from the oldest chunk on, and jumps over those that stay.
//
// # What holds an object
//
// The directory word of a slot is free, live(g) or closing(g), where g is the
// object's generation, never used twice.
//
//   - A debt. The writer charges a reader before the object is live (owed+1);
//     the reader settles the debt when it releases its lease (done+1). An
//     object with a debt open is not evicted, so reading it takes no shared
//     write. A reader sees what it owes, and counts for itself what it has
//     collected, so it can never settle more than it was charged.
//   - A pin, for a handle nobody charged. The reader raises its pin and then
//     reads the word: live(g), go on; closing(g), wait for what the writer
//     decides; anything else, lower the pin, the object is gone.
//
// To evict, the writer finds an object that every reader has settled, stores
// closing(g), and then looks at every reader's pin:
//
//	writer: evict                              reader: pin
//	-------------                              -----------
//	every reader's done equals its owed        pin = pin + 1
//	word = closing(g)                          look at the word
//	look at every reader's pin                   live(g):     it stays, take the lease
//	  one is set: word = live(g)                 closing(g):  look again
//	  none is, and reader 0 still owes           else:        pin = pin - 1, ErrStale
//	  nothing:  word = free
//
// Both sides write before they look, and Go's atomics are totally ordered, so one
// of them sees the other: if the writer overlooked the pin, the reader finds closing
// or free. Without the state between live and free the answer could be wrong. A
// writer that looks at the pins while the word is live misses one raised just after,
// whose reader then finds live; one that stores free before it looks has to take that
// back after a reader was told that the object is gone.
//
// The writer looks at the debts of the local reader once more after the pins,
// because a lease that was there at the first look may have been shared, and
// released, before the pins were looked at. A reader waits some seconds for an
// unfinished closing, and then returns [ErrOwnerStalled]: most likely the owner died.
//
// # Trust
//
// The owner trusts no reader: a ledger is checked before it is mapped, and a
// reader that settles more than it owes is put in quarantine. It keeps what it held until it is
// removed, and harms nobody else. A reader does not trust its
// handles: store, slot, generation, offset, size and codec must agree with the
// directory and with the bounds of the mapping, so that a stale, forged or
// damaged handle is an error and never other bytes. A reader does trust the
// owner with the contents of its objects, and with handing over the right
// segment for a large one.
//
// A segment from a peer is mapped only if it is sealed against shrinking, growing
// and further writable mappings, has the expected size (that of a large object may be
// larger), and has no holes; then no access to it can fault. One that may have holes
// ([OpenFillingSegment]) is read only where it has none. Without the seals the peer could
// take the memory away under a reader. That the peer goes on writing to it cannot be
// seen, and spoils nothing but its own payloads.
//
// # Ordering
//
// What was written into a reservation before Commit is seen by whoever has a
// lease on the object. What a reader read before Release was read before the
// room is used again. There is no order between different objects, except that
// eviction looks at them by age.
//
// # Concurrency
//
// Methods of [Store] are for one goroutine, the writer, unless they say
// otherwise. [Reservation] and [Lease] are plain values for one goroutine at a
// time, on any. [Reader], [Segment] and [Arena] are safe for concurrent use.
//
// # What Check verifies
//
// [Store.Check] compares what the store knows twice and returns what does not agree.
// It may run while readers read. It is the oracle of the crash tests and of the model
// tests; a bus runs it when it closes, and omnibus check on request. The invariants
// have names (InvariantSettled and others; those of the rings of GPU memory are in
// cudaipc/pool and cudaipc/tlsf). The two that matter most: for every reader and slot,
// done ≤ taken ≤ owed modulo 2³², and no reader owes anything for an empty slot. With
// the race detector, or the build tag invariants, freed payloads are also filled with
// 0xdb.
//
// # After a crash
//
// Segments are memfds without a name: nothing is left behind when the last
// process that maps them is gone. When a reader dies, its process id's
// descriptor becomes readable, the caller removes it, and all it held is free,
// exactly. When the owner dies, what readers hold stays valid until they let
// go; only a reader that happens to wait for an unfinished eviction gets
// [ErrOwnerStalled]. When a producer inside the owner's process fails, it
// aborts its reservations, or they stay. A peer that dies while it attaches makes
// [Store.Admit] fail within seconds, and leaves nothing. When the writer of a peer's
// segment dies, what it wrote stays readable, and its rooms are for the keeper of the
// books to release.
package shmstore
