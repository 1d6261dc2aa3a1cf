// Package bridge has the connector types of engines of other programs, under the keys and with
// the bytes of vLLM-Omni's connectors: of Mooncake's and Yuanrong's stores, and of NIXL and Mooncake's
// transfer engine, by which one process reads the memory of another, or writes it. [Types] returns them, to be registered.
//
// There are no clients of these engines for Go that a host could trust with its life. So a Python
// program of the client package, omnibus.bridge, has one, and this package starts it, watches it,
// asks it and stops it: one for each type and settings, however many transports there are. Payloads
// lie in memory that both have mapped; a packet of a Unix socket says what is to be done with
// which. What an engine lacks, the Python side adds for every program in Python too: see its
// modules connector.stores and connector.peer_store.
//
// # What goes wrong
//
// All errors name the engine and its address. A transport is opened with its store: where
// that is not installed, not started or of another version, opening it fails. A call that has
// no answer within the option timeout ends with [connector.ErrUnavailable].
//
// A bridge that dies is started again. Calls that it had under way fail; a put that failed, or
// was given up, is taken back before the key is used again in this process, and a value that a get
// took after it was given up is put back: without a store, to the bridge that took it. What lay in the
// memory of its client is gone: a get does not find it. Without a store that is all that was put.
//
// # Lifetime
//
// Cleanup and Close remove what was put and not got. When this process dies, the
// bridge does. When both die, nothing is left without a store, Yuanrong removes values after ttl, and Mooncake those of its own
// segment, at once, and others when it needs the room.
//
// # Trust
//
// The bridge is believed: it is this process's child, and its program the user's own. The store
// is believed as far as the serializer believes it.
//
// # Concurrency
//
// All methods may be called from any goroutine. A bridge has 4 threads, with a socket each, and does as many
// calls at a time; further ones wait here. A call takes the thread that was used last.
package bridge
