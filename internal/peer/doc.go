// Package peer connects two processes of one host: packets with descriptors
// over a Unix socket of type SOCK_SEQPACKET, and a watch over the process at
// the other end. It carries the node protocol of docs/protocol.md, whose
// messages are package wire's.
//
// # Parts
//
//   - [Listen], [Dial] and [Pair] make a [Conn], which sends and receives packets.
//   - A [Receiver] takes the messages of a connection one by one, with their
//     descriptors. Serve calls a handler for each; a goroutine that waits for the peer may
//     handle them in its place, with Look.
//   - A [Sender] is a connection's outgoing queue: it never blocks whoever has
//     something to say.
//   - A [Process] is the other process: whether it lives, and signals for it.
//
// # Shared memory
//
// When both sides have called [Conn.ShareLane] and [Conn.OpenLane], a packet goes past the
// kernel, by a lane in shared memory, to a receiver that is awake. It goes by the socket to a
// receiver that sleeps, with descriptors, and where the lane has no room for it. Packets keep
// their order all the same. The memory is given back when the Sender and the Receiver of a
// connection have both been closed.
//
// The package works on Linux. Elsewhere it compiles, and everything that would
// make a connection returns [ErrUnsupported].
//
// # Trust
//
// The peer is not trusted. It can send anything: packets that are too long,
// too many descriptors, nothing at all. That is an error, which is
// [wire.ErrProtocol], and leaves no descriptor behind. It can stop reading: a
// Sender's queue has a bound. What it says about itself is not believed: who
// it is comes from the kernel, as of the moment when it connected.
//
// The socket file decides who may connect. It has its mode from the moment at
// which it exists, whatever the umask.
//
// Nor is a listener trusted by its place. Dial sends nothing, and returns
// [ErrUntrusted], unless the socket, the process that listens, as of the moment
// when it began to, and the folder belong to this process's user, or to one that
// the caller names. The folder may also be the superuser's, and other users must
// not be able to replace the socket in it. Nothing else of the superuser's is
// believed unless it is named.
//
// # Descriptors
//
// What is sent stays the caller's: neither Send nor Queue closes it. What is
// received belongs to the caller, who closes it, and has FD_CLOEXEC from the
// moment at which it exists.
//
// # Ordering
//
// The packets of one direction keep their order, and so do the messages of a
// Sender: a message whose Queue has returned is sent before one whose Queue
// begins later. Nothing else is ordered. In particular a process can be seen
// dead before its last packets have been read, and its connection can be seen
// closed while it lives on.
//
// # Concurrency
//
// Receive is for one goroutine at a time, and so is Send; the two may overlap.
// With a Sender, only the Sender sends. The methods of a Sender, a Process and a
// Listener, and Conn.Close, may be called from any goroutine.
//
// # After a crash
//
// A host that dies leaves its socket file and its lock file. The kernel gives
// up the lock, by which the next host knows that the socket is nobody's, and
// takes its place. The lock file stays for good: to remove it while another
// process waits at the door would let two in.
package peer
