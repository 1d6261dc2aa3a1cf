// Package peer connects two processes of one host: packets with descriptors
// over a Unix socket of type SOCK_SEQPACKET, and a watch of the process at the
// other end. It carries the node protocol of docs/protocol.md, whose messages
// are those of package wire.
//
// # Parts
//
//   - [Listen], [Dial] and [Pair] make a [Conn], which sends and receives packets.
//   - A [Receiver] receives the messages of a connection one by one, with their
//     descriptors. Serve calls a handler for each; a goroutine that waits for the peer may
//     handle them in its place, with Poll.
//   - A [Sender] is a connection's outgoing queue: it never blocks its callers.
//   - [Watch] watches the process at the other end.
//
// # Shared memory
//
// When both sides have called [Conn.ShareLane] and [Conn.OpenLane], a packet to a receiver that
// is awake bypasses the kernel, by a lane in shared memory. A packet goes by the socket if the
// receiver sleeps, if it has descriptors, or if the lane has no space for it. Packets keep their
// order across both ways. The memory is given back when the Sender and the Receiver of a
// connection have both been closed.
//
// The package works on Linux. On other systems it compiles, and every function that
// makes a connection returns [ErrUnsupported].
//
// # Trust
//
// The peer is not trusted. It can send packets that are too long, too many
// descriptors, or packets of no bytes. That is [wire.ErrProtocol] (or io.EOF for no
// bytes), and leaves no descriptor behind. It can stop reading: a Sender's queue has
// a bound. The identity of the peer comes from the kernel, as of the moment when it
// connected, and not from its messages.
//
// The mode of the socket file decides which users may connect. The file has that
// mode from the moment when it exists, under any umask.
//
// A listener is not trusted because of its path. Dial sends no packet, and returns
// [ErrUntrusted], unless the socket, the listening process (as of the moment when it
// began to listen) and the folder belong to the user of this process, or to a user
// that the caller names. The folder may also belong to the superuser, and other users
// must not be able to replace the socket in it. Sockets and processes of the
// superuser are trusted only if the caller names it.
//
// # Descriptors
//
// Descriptors that are sent stay the caller's: neither Send nor Queue closes them.
// The receiver's caller owns received descriptors and closes them. They have
// FD_CLOEXEC from the moment when they exist.
//
// # Ordering
//
// The packets of one direction keep their order, and so do the messages of a
// Sender: a message whose Queue has returned is sent before one whose Queue
// begins later. There is no other order. In particular a process can be seen dead
// before its last packets have been read, and its connection can be seen closed
// while it still lives.
//
// # Concurrency
//
// One goroutine at a time may call Receive, and one may call Send; the two may
// overlap. With a Sender, only the Sender sends. The methods of a Sender and a
// Listener, and Conn.Close, may be called from any goroutine.
//
// # After a crash
//
// A host that dies leaves its socket file and its lock file. The kernel releases
// the lock: the next host then knows that no process uses the socket, and replaces
// it. The lock file is never removed: if it were removed while another process
// opens it, two hosts could hold a lock.
package peer
