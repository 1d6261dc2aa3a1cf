// Package duplex joins two processes for as long as both live: a lane each way
// for messages (see shmstore/lane), and a socket for the segments that the
// messages speak of.
//
// Somebody whom both believe, the host, has given each an end of the socket.
// [Meet] exchanges what the lanes are made of: each side makes one segment,
// which it alone writes to, with the frames that it sends and the head of those
// that it receives, and two eventfds that it sleeps on: waiting for frames, and
// for room.
//
//	d, err := duplex.Meet(conn, id, side, duplex.Options{})
//	go d.Run(handler)      // until the peer is gone
//	err = d.Send(message)  // never waits
//
// # Trust
//
// The peer is believed in nothing. A message that is none, a lane that is used
// against its rules, or a segment without its seals ends the duplex with an
// error that says so. What messages mean is for the handler to check.
//
// # Death
//
// That the socket has ended is a hint, as is [Duplex.PeerGone], which whoever
// watches the peer calls: what the peer had published before is still handled,
// and then Run returns. What the peer may still read is not known here.
//
// # Waiting
//
// Run parks when nothing is there. A goroutine that waits for the peer calls [Duplex.Look]
// before it parks: it then handles messages in the place of Run, and neither process
// has to wake a thread.
//
// # Concurrency
//
// Messages are handled one after the other, by Run or by a goroutine in Look.
// Send, Offer and Forget may be called from any goroutine, under any lock: they
// do not wait, and messages of one goroutine arrive in its order. A segment
// that is offered before a message is there before it is handled: the handler
// waits for it, if it is not.
//
// Source: the protocol is described in docs/protocol.md, "Lanes between clients".
package duplex
