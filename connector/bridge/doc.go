// Package bridge has the connector types of other programs' engines, under the keys and with the
// bytes of vLLM-Omni's connectors: Mooncake's and Yuanrong's stores, and NIXL and Mooncake's
// transfer engine, by which one process reads or writes the memory of another. [Types] returns
// them, for a registry.
//
// No Go client of these engines is safe enough to run inside a host. So a Python program of the
// client package, omnibus.bridge, contains the client; this package starts, supervises, calls and
// stops it: one bridge for each type and settings, however many transports there are. Payloads lie
// in memory that both processes have mapped; each packet of a Unix socket names an operation and a
// buffer. Features that an engine lacks are implemented on the Python side, for programs in Python
// too: see its modules connector.stores and connector.peer_store.
//
// # Failures
//
// All errors name the engine and its address. Opening a transport connects to its store: if the
// store is not installed, not started or of another version, Open fails. A call without an answer
// within the option timeout ends with [connector.ErrUnavailable].
//
// A bridge that dies is started again. Calls that it had in flight fail. A put that failed or timed
// out is undone before this process uses the key again; a value that a get consumed after its
// timeout is put back: without a store, into the bridge that consumed it. Values in the memory of
// the bridge's client are lost with it, and a get does not find them. Without a store, those are
// all values.
//
// # Lifetime
//
// Cleanup and Close remove values that were put and not got. The bridge ends when this process
// dies. When both die, no value is left without a store; Yuanrong removes values after ttl;
// Mooncake removes those of its own segment at once, and others when it needs the space.
//
// # Trust
//
// The bridge is trusted: it is this process's child, and its program belongs to the same user. Data
// of the store is trusted as far as the serializer trusts it.
//
// # Concurrency
//
// All methods may be called from any goroutine. A bridge has 4 threads, each with a socket, and
// runs as many calls at a time; further calls wait in this process. A call uses the thread that was
// used last.
package bridge
