// Package host lets other processes take part in a bus: it is the host's end of the process
// boundary, and package bus/node the other.
//
//	b, err := bus.Open(ctx, pipeline, options) // some of whose stages are bus.Remote
//	server, err := host.Listen(b, path, host.ListenOptions{})
//
// [Listen] opens a socket. Processes that connect there serve the bus's Remote stages and
// submit requests; docs/protocol.md says how, for clients in any language. A client's
// payloads are not copied: it writes them into memory of its own, which the host maps.
//
// # Two nodes past the host
//
// Between two nodes deliveries pass the host by, through shared memory. What the hosting
// program itself sends and serves goes over sockets.
//
// # Trust
//
// Peers must run as this process's user, or as one that [ListenOptions] allow, and are not
// trusted beyond that: all that they send is checked, and one that breaks the protocol is cut
// off. A client that lies about its payloads harms the processes that read them, and no others.
//
// # Death
//
// When a process dies, all that it held comes back, and what it had not finished is done
// elsewhere as far as State, Attempts and Replay of the stage allow: docs/delivery.md. A
// client that hangs up and lives may still read what it has: that comes back when it is dead.
//
// # Concurrency
//
// A [Server] is safe for concurrent use. Close it before its bus. The functions of
// [ListenOptions] are called on the server's goroutines, and must not block.
package host
