// Package ring keeps the values of connectors in this project's store: the serializer encodes into
// the store, and readers read the values there.
//
// A [Table] is the exchange: it maps an edge and a key to a payload, and knows the payload's owner,
// the waiting readers, and the time when the payload is swept. It knows payloads only as values to
// be released, so a host keeps those of other processes in the same table. A [Store] is a shared
// memory store with a writer actor, whose puts wait for space in order. A [Ring] is a table over a
// store, for one process; each [End] of it is a transport.
//
//	put:  reserve space -> fill -> commit -> lease ---> table: (edge, key) -> payload
//	get:                        the lease is handed over <---/      |
//	cleanup, close, sweep:      the lease is released <-------------/
//
// # Space
//
// A value of up to 64 KiB takes space of the next power of two, from 1 KiB on. The writer grants up
// to 256 KiB of each size ahead, so most puts send it no request. Released objects travel to the
// writer with one of the next puts, and the writer uses their space again before any other.
//
// A put waits for space, in the order of the puts, until its context ends, or for Options.Timeout,
// and then fails with connector.ErrFull, which names the holders. While a put waits, no space is
// granted ahead. A value that no reader gets is swept after Options.TTL.
//
// # Concurrency
//
// All types may be used from any goroutine. The writer is an actor of package actors, in an actor
// system of the store; payloads are filled and read outside the actor. Close ends the goroutines of
// the system.
package ring
