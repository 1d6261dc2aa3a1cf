// Package messages defines what travels on the edges of a bus: the handle of
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
// [ValidateLabels] and [ValidateTraceState] say whether texts of a producer fit
// into a message. What passes is well formed, no more: whether a handle names
// anything is for its store to say. Attributes and keys may hold any text, so
// print them quoted.
//
// # Ordering and concurrency
//
// Messages keep no order; the sequence number of a delivery says where in its
// stream it belongs. All functions may be called from any goroutine. Inline and
// Attrs do not change once a delivery has been sent: a fan-out shares both
// between its copies.
//
// # After a crash
//
// The package keeps no state, so a crash leaves nothing behind.
package messages
