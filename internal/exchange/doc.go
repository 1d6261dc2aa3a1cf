// Package exchange is the host's table of values under keys, and the memory for the values of a
// process.
//
// An [Exchange] belongs to the process that hosts a bus. Its endpoints in that process are
// transports ([connector.Transport]); the sessions of clients call it for puts and gets of their
// clients. A [ValueStore] is the memory for the values that one process puts, in a host and in a
// node: a store with a writer actor (package connector/ring).
//
// # Promises
//
// A value that was placed reaches one process, or stays until it is taken back or swept, or until
// its owner's process ends. A fetched value is in the account of its process (package accounts)
// until it is given back, at the latest when the process dies.
//
// # Concurrency
//
// All methods are safe for concurrent use. Exchange.mu comes before the lock of an account, and
// ValueStore.mu before those of the store's writer.
package exchange
