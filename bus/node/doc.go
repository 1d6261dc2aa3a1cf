// Package node makes a process a part of a bus that another process hosts: it is the node's
// end of the process boundary, and package bus/host the other.
//
//	n, err := node.Join(ctx, "talker", node.JoinOptions{})
//	err = n.Serve(ctx, bus.Stage("talker", talk))
//
// [Join] connects to the host. [Node.Serve] does the work of stages that are Remote there,
// with the same handlers as in the host; [Node.Submit] and [Node.Stream] send requests, with
// the same calls; [Node.Exchange] is the host's exchange of values under keys.
//
// # Payloads
//
// They are not copied: those that a node emits lie in memory of its own, which the others
// map; those that it gets lie where they were written. Between two nodes deliveries pass the
// host by, through shared memory.
//
// # Death
//
// When the host dies, a node's requests end with bus.ErrHostGone, and its tasks are aborted.
// With JoinOptions.Rejoin it waits for the next host, and serves its stages there. When another
// node dies, what that had read of this node's memory comes back, once no process reads it.
//
// # Trust
//
// A node sends nothing to a host of another user, nor to one in a folder where another user
// could have put the socket: [ErrUntrusted].
//
// # Concurrency
//
// A [Node] is safe for concurrent use. Close waits for its handlers.
package node
