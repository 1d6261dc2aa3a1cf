// Package accounts records which payloads of this process each other process has, and in which
// memory they lie.
//
// A [Segment] is shared memory for payloads. A [Payload] lies outside the bus's own store; its
// deliveries share it and count its references. An [Account] records the payloads that one other
// process has: each session of the host has an account, and so have a node's link to its host and
// each of its links to other nodes. A [Hold] is one entry of an account.
//
// # Promises
//
// A payload is in the account before it is sent to the other process, and so is its memory. When
// the other process dies or hangs up, its account alone says which payloads it had:
// [Account.Close] returns the unfinished deliveries and leaves the payloads that the process may
// still read, and [Account.Drop] gives those back. Each payload is given back exactly once. Memory
// is given back when no payload in it is needed and no more will come.
//
// # Trust
//
// Numbers, offsets and sizes from another process are checked: [Segment.CheckedPayload] and the
// methods of [Account] refuse those that do not fit.
//
// # Concurrency
//
// All methods are safe for concurrent use, except those that prepare a payload or a segment before
// other goroutines have it; their comments say so. The lock of an account comes after the locks of
// remote stages, flows and resequencers, and before those of the senders to the other process. No
// payload is given back under it.
package accounts
