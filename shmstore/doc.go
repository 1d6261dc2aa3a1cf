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
// stays readable by its handle, and by its key if it has one.
//
// Objects above Options.LargeObjectBytes get a segment of their own beside the
// arena, so that one of them cannot fill it. All else is the same for them, but
// that a reader in another process must be given the segment before it can read:
// [Store.LargeSegment] and [Reader.AddSegment]. Devices can be told of it, too, which have
// to forget it before it is unmapped: [Store.OnLarge].
//
//	h, err := store.Put("", data, shmstore.Readers(1, 2))  // the writer
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
// # Who writes what
//
// Every shared byte has exactly one writing process. Nothing is locked, and
// nothing is compared and swapped, across processes; layout.go draws the
// segments. The owner writes payloads, directory and accounts; each reader
// writes its own ledger.
//
// # Peers that keep no accounts
//
// A process without a ledger can share memory all the same. A [Segment] is one piece of
// memory with one writing process, which knows which parts of it are in use, and whom
// to ask when they are not any more.
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
// closing(g), and then looks at every reader's pin. With a pin set it stores
// live(g) again; with none it stores free. Both sides write before they look,
// and Go's atomics are totally ordered, so one of them sees the other. The
// state between live and free matters: a reader that found free while the
// writer still considered could not tell "gone" from "staying".
//
// # Trust
//
// The owner trusts no reader: a ledger is checked before it is mapped, and a
// reader that settles more than it owes is put in quarantine, as is one whose ledger
// says that it owes 2^30 deliveries of an object. It keeps what it held until it is
// removed, and harms nobody else. A reader does not trust its
// handles: store, slot, generation, offset, size and codec must agree with the
// directory and with the bounds of the mapping, so that a stale, forged or
// damaged handle is an error and never other bytes. A reader does trust the
// owner with the contents of its objects, and with handing over the right
// segment for a large one.
//
// A segment from a peer is believed only as far as its seals go: without them
// the peer could take the memory away under a reader. That the peer goes on
// writing to it cannot be seen, and spoils nothing but its own payloads.
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
// # After a crash
//
// Segments are memfds without a name: nothing is left behind when the last
// process that maps them is gone. When a reader dies, its process id's
// descriptor becomes readable, the caller removes it, and all it held is free,
// exactly. When the owner dies, what readers hold stays valid until they let
// go; only a reader that happens to wait for an unfinished eviction gets
// [ErrOwnerStalled]. When a producer inside the owner's process fails, it
// aborts its reservations, or they stay. When the writer of a peer's segment
// dies, what it wrote stays readable, and its rooms are for the keeper of the
// books to release.
package shmstore
