// Package ring keeps the values of connectors in this project's store: encoded
// straight into it, and read where they lie.
//
// A [Table] is the exchange itself: which payload lies under which key, who put it,
// who waits for it, and what becomes of it when nobody comes. It knows payloads
// only as something to give back, so a host keeps those of other processes in the
// same table. A [Store] is a store with a writer actor, whose puts wait for room in order. A [Ring] is a table
// over a room, for one process; each [End] of it is a transport.
//
//	put:  reserve room -> fill -> commit -> lease ---> table: (edge, key) -> payload
//	get:                        the lease is handed over <---/      |
//	cleanup, close, sweep:      the lease is released <-------------/
//
// # Room
//
// A value of up to 64 KiB takes room of the next power of two, from 1 KiB on, which the writer
// grants ahead, up to 256 KiB of each size: most puts ask the writer nothing. What was
// released goes with one of the next puts, and the writer uses its room again before any other.
//
// A put waits for room, in the order of the puts, until its context ends, or for
// Options.Timeout, and then fails with connector.ErrFull, saying who holds what. While one
// waits, no room is granted ahead. What nobody got is swept
// after Options.TTL.
//
// # Concurrency
//
// Everything may be used from any goroutine. The writer is an actor of package actors, in a
// system of the room's own; payloads are filled and read beside it. Close ends the goroutines
// of both.
package ring
