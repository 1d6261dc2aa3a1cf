// Package host lets other processes take part in a bus. It is the host's end of the process boundary;
// package bus/node is the other end.
//
//	b, err := bus.Open(ctx, pipeline, options) // some of whose stages are bus.Remote
//	server, err := host.Listen(b, path, host.ListenOptions{})
//
// [Listen] opens a socket. Processes that connect there serve the bus's Remote stages and submit
// requests; docs/protocol.md describes the protocol, for clients in any language. A client's payloads
// are not copied: the client writes them into its own memory, which the host maps.
//
// # Direct paths
//
// Deliveries between two nodes go directly, through shared memory, without the host. Deliveries that
// the hosting program itself sends or serves go over sockets.
//
// # Trust
//
// A peer must run as this process's user or as a user in [ListenOptions].AllowUIDs, and is not trusted
// beyond that: the host checks every message, and ends the session of a client that breaks the
// protocol. A client that gives false payloads harms only the processes that read those payloads.
//
// # Death
//
// When a process dies, the host takes back all that the process held. Unfinished work is redelivered as
// far as State, Attempts and Replay of the stage allow: docs/delivery.md. A client that hangs up but
// lives may still read its payloads; the host takes those back when the client is dead.
//
// # Concurrency
//
// A [Server] is safe for concurrent use. Close it before its bus. The functions of [ListenOptions] are
// called on the server's goroutines and must not block.
package host
