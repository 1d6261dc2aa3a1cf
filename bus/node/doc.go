// Package node makes a process part of a bus that another process hosts. It implements the node's
// side of the connection; package bus/host implements the host's side.
//
//	n, err := node.Join(ctx, "talker", node.JoinOptions{})
//	err = n.Serve(ctx, bus.Stage("talker", talk))
//
// [Join] connects to the host. [Node.Serve] runs the handlers of stages that are Remote in the
// host's pipeline; a handler is the same as in the host. [Node.Submit] and [Node.Stream] send
// requests, with the API of the host's bus. [Node.Exchange] is the host's exchange of values under
// keys.
//
// # Payloads
//
// Payloads that do not travel in messages are not copied. A node writes the payloads that it emits
// to its own shared memory, which the other processes map, and reads each payload that it receives
// where the producer wrote it. Deliveries between two nodes take a direct path through shared
// memory, without the host.
//
// # Death
//
// When the host dies, the node's requests end with bus.ErrHostGone, and its tasks are aborted. With
// JoinOptions.Rejoin the node waits for the next host, and serves its stages there. When another
// node dies, the memory of this node that the dead node was reading is free again once no process
// reads it.
//
// # Trust
//
// A node sends nothing to a host of another user, nor to a host in a folder where another user
// could have created the socket: Join returns [ErrUntrusted]. JoinOptions.AllowUIDs names the
// exceptions.
//
// # Concurrency
//
// A [Node] is safe for concurrent use. Close waits for its handlers.
package node
