// Package messages defines the messages on the edges of a bus: the handle of
// an object in a store, and the delivery that carries it.
//
// A [Delivery] is a plain struct that is passed by value. Between processes its
// fields are those of the messages of docs/protocol.md, which the bus writes
// and reads. Nil Inline means that there is no inline payload; an empty one that
// is not nil is a payload of no bytes. All text is UTF-8.
//
// A handle has a binary form of 40 bytes ([Handle.MarshalBinary]), for programs
// that attach to one store.
//
// # Trust
//
// [ValidateLabels] and [ValidateTraceState] check that texts of a producer fit
// into a message and are well formed. They do not check handles: only the store knows
// whether a handle names an object. Attributes and keys may hold any text, so
// print them quoted.
//
// # Ordering and concurrency
//
// Messages keep no order; the sequence number of a delivery is its position in its
// stream. All functions may be called from any goroutine. Inline and
// Attrs do not change once a delivery has been sent: a fan-out shares both
// between its copies.
//
// # After a crash
//
// The package keeps no state, so a crash leaves nothing behind.
package messages
