// Package accounts says who holds what: of the payloads that a process passes on, which other
// process has which, and in which memory they lie.
//
// A [Segment] is shared memory that payloads lie in. A [Payload] is one that lies outside the
// bus's own store; its deliveries share it, and count its references. An [Account] is the one
// book of what another process has: a session of the host's has one, and so has a node's link to
// its host, and each of its pairs with other nodes. A [Hold] is one entry of it.
//
// # Promises
//
// The other process is told of no payload that its account does not have, and of no memory that
// its account does not know. When the other process dies, or hangs up, its account is the one
// place that says what it had: [Account.Close] takes from it what it has not finished and leaves
// what it may be reading, and [Account.Drop] lets go of the rest. Each payload is given back
// exactly once, and its memory when no payload in it is needed and no more will come.
//
// # Trust
//
// Numbers, offsets and sizes that another process says are not believed: [Segment.Claimed] and
// the methods of [Account] refuse what does not fit.
//
// # Concurrency
//
// All methods are safe for concurrent use, but for those that prepare a payload or a segment
// before others have it, which say so. The lock of an account comes after the locks of remote
// stages, flows and arrivals, and before those of the senders that tell the other process. No
// payload is given back under it.
package accounts
