// Package shmstore keeps payloads in memory that many processes read and one
// writes: a single-writer object store over the ring of package ringbuf.
//
// # Use
//
// A producer puts an object, or reserves space, fills it in place and commits.
// It gets a [Handle], a small plain value, and sends it to the consumers it
// charged. A consumer turns the handle into a [Lease], reads, and releases the
// lease once. No byte is copied. An object that a reader holds is never freed:
// the writer frees space only when it needs some, from the oldest objects that
// all their readers have settled. Until then an object stays readable by its
// handle.
//
// Objects above Options.LargeObjectBytes get a segment of their own beside the
// arena, so that one of them cannot fill it. Two things differ for them. A reader
// in another process must be given the segment before it can read:
// [Store.LargeSegment] and [Reader.AddSegment]. And a device that was told of the
// segment must forget it before it is unmapped: [Store.OnLarge].
//
//	h, err := store.Put(data, shmstore.Readers(1, 2))  // the writer
//	...
//	lease, err := reader.Take(h)                           // readers 1 and 2
//	defer lease.Release()
//	use(lease.Bytes())
//
// An object may hold a piece of another memory beside its bytes, which the store
// does not map: memory of a GPU, for example. [Store.ReserveOn] asks a [Device] for the
// piece, and the store frees the piece exactly when it frees the object. So debts, pins,
// evictions and the death of readers work for both memories, with one account.
// Space on a device comes from the oldest settled objects that hold pieces of it.
//
// # Memory
//
// No access fails for want of memory: space has all its pages before it is granted. A
// store takes the pages of its whole arena when it is made, or, with Options.Reuse, as
// payloads come to need more of it than ever before; if the machine has no more then,
// the store is full with what it has. Readers open a [Segment] of such a store with
// [OpenFillingSegment].
//
// The Python client reads a store (omnibus.store) and owns one (omnibus.keyed) in the
// same way as Go does, on x86-64 and arm64.
//
// # Writers of shared bytes
//
// Every shared byte has exactly one writing process. Nothing is locked, and
// nothing is compared and swapped, across processes; layout.go draws the
// segments to the byte. The owner writes payloads, directory and accounts; each
// reader writes its own ledger.
//
// Within the owner's process the writer shares three things with other goroutines.
// The holder of a reservation writes the payload, and the size and codec of its line,
// until Commit, which moves the word on from reserved; after that no process
// writes them. Commit and [Lease.Share] add debts of the local reader, with atomic
// additions. The count of debts that a reader has collected (taken) is on that reader's
// heap, changed by compare and swap; so are account and ledger of a reader of the owner's
// process. The ring, slots in use and charged readers are on the writer's heap and
// need no synchronization.
//
// # Peers that keep no accounts
//
// A process without a ledger can share memory all the same. A [Segment] is one piece of
// memory with one writing process. That process knows which parts of it are in use, and
// which processes to ask when a part is no longer in use.
//
// # The life of an object
//
//	         Reserve           Commit                       settled, no pin
//	(empty) ---------> reserved ------> live <-----> closing --------------> (empty)
//	 free(0)           free(g)  |      live(g)  pin  closing(g)               free(0)
//	                            | Abort
//	                            +-----> aborted(g) ----- next scan ----------> (empty)
//
// Store.vacate empties a slot that an eviction found settled, and frees the object's piece
// of a device with it. A store with Options.Reuse evicts some objects with each reservation.
// Every store evicts when space or slots run out, from the oldest chunk on, and skips the
// objects that are held.
//
// # What holds an object
//
// The directory word of a slot is free, live(g) or closing(g), where g is the
// object's generation, never used twice.
//
//   - A debt holds an object for a charged reader. The writer charges the reader before
//     the object is live (owed+1); the reader settles the debt when it releases its lease
//     (done+1). An object with an open debt is not evicted, so reading it takes no shared
//     write. A reader sees what it owes, and counts for itself what it has
//     collected, so it can never settle more than it was charged.
//   - A pin holds an object for a reader that was not charged. The reader raises its pin
//     and then reads the word: live(g), the lease is taken; closing(g), the reader waits
//     for the writer's decision; anything else, it lowers the pin, and the object is gone.
//
// To evict, the writer finds an object that every reader has settled, stores
// closing(g), and then reads every reader's pin:
//
//	writer: evict                              reader: pin
//	-------------                              -----------
//	every reader's done equals its owed        pin = pin + 1
//	word = closing(g)                          read the word
//	read every reader's pin                      live(g):     it stays, take the lease
//	  one is set: word = live(g)                 closing(g):  read the word again
//	  none is, and reader 0 still owes           else:        pin = pin - 1, ErrStale
//	  nothing:  word = free
//
// Both sides write before they read, and Go's atomics are totally ordered, so one
// of them sees the other: if the writer missed the pin, the reader finds closing
// or free. Without the state between live and free the answer could be wrong. A
// writer that reads the pins while the word is live misses one raised just after,
// whose reader then finds live; one that stores free before it reads the pins has to
// take that back after a reader got ErrStale.
//
// The writer reads the debts of the local reader once more after the pins,
// because a lease that existed at the first read may have been shared, and
// released, before the pins were read. A reader waits some seconds for an
// unfinished closing, and then returns [ErrOwnerStalled]: most likely the owner died.
//
// # Trust
//
// The owner trusts no reader: a ledger is checked before it is mapped, and a
// reader that settles more than it owes is put in quarantine. Its objects stay until
// it is removed, and no other reader is affected. A reader does not trust its
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
// take the memory away under a reader. A reader cannot see that the peer goes on writing
// to a segment; such writes spoil the peer's own payloads and nothing else.
//
// # Ordering
//
// A reader with a lease on the object sees all bytes written into the reservation
// before Commit. All reads before Release happen before the space is used again. There
// is no order between different objects, except that eviction checks them by age.
//
// # Concurrency
//
// Methods of [Store] are for one goroutine, the writer, unless they say
// otherwise. [Reservation] and [Lease] are plain values for one goroutine at a
// time, on any. [Reader] and [Segment] are safe for concurrent use.
//
// # Invariants
//
// [Store.Check] compares everything that the store knows twice, and returns what does not
// agree. It may run while readers read. It is the oracle of the crash tests and of the model
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
// descriptor becomes readable, the caller removes the reader, and exactly what it held is
// free. When the owner dies, leased objects stay valid until their readers release them;
// only a reader that waits for an unfinished eviction gets [ErrOwnerStalled]. When a
// producer inside the owner's process fails, it must abort its reservations, or they stay.
// A peer that dies while it attaches makes [Store.Admit] fail within seconds, and leaves
// nothing. When the writer of a peer's segment dies, its payloads stay readable, and the
// process that keeps the accounts releases their space.
package shmstore
