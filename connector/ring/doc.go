// Package ring keeps the values of connectors in this project's store: encoded
// straight into it, and read where they lie.
//
// A [Table] is the exchange itself: which payload lies under which key, who put it,
// who waits for it, and what becomes of it when nobody comes. It knows payloads
// only as something to give back, so a host keeps those of other processes in the
// same table. A [Room] is a store whose writers wait for room. A [Ring] is a table
// over a room, for one process; each [End] of it is a transport.
//
//	put:  reserve room -> fill -> commit -> lease ---> table: (edge, key) -> payload
//	get:                        the lease is handed over <---/      |
//	cleanup, close, sweep:      the lease is released <-------------/
//
// # Room
//
// What was released goes with one of the next puts, and its room is used again before
// any other, while it is in the caches of the processors.
//
// A put waits for room until its context ends, or for Options.Timeout, and then
// fails with connector.ErrFull, saying who holds what. What nobody got is swept
// after Options.TTL.
//
// # Concurrency
//
// Everything may be used from any goroutine. The store has one writer at a time,
// behind a mutex; payloads are filled and read beside each other.
package ring
