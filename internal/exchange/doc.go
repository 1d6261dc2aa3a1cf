// Package exchange is the host's table of values under keys, and the memory that a process puts
// its values into.
//
// An [Exchange] belongs to the process that hosts a bus. Its own ends are transports
// ([connector.Transport]); what clients place and get comes by their connections, which call it.
// A [Room] is the memory of what one process puts, in a host and in a node: a store with a writer
// actor (package connector/ring).
//
// # Promises
//
// A value that was placed reaches one process, or stays until it is taken back, swept or its
// owner's process has gone. What a process has got is in its account (package ledger) until it is
// given back, which happens when the process dies, too.
//
// # Concurrency
//
// All methods are safe for concurrent use. Exchange.mu comes before the lock of an account, and
// Room.mu before those of the room's writer.
package exchange
