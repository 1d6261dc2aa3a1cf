// Package actors runs the bus's work as protoactor-go actors, and is the only
// package of the bus that imports protoactor-go.
//
// Three kinds of actor share one [System]:
//
//   - the writer ([Writer]) is the sole owner of a payload store's accounts.
//     Producers ask it for room, running it on their own goroutine if it
//     stands idle, and fill that room outside it, in parallel; small payloads
//     come from extents, many reservations granted at once ([Producer]), so
//     that most of them ask nobody;
//   - stages ([Stage]) handle messages, one at a time, behind a bounded
//     mailbox ([Mailbox]) and on a dispatcher that keeps its goroutines warm
//     ([Dispatcher]);
//   - the supervisor is the parent of all stages. It restarts a stage whose
//     handler panicked, and it is handed every message that was accepted and
//     will never be handled, so that what the message held can be given back.
//
// # Promises
//
// Each message posted to a stage is handled once or reported once to its
// [Receiver]: to Failed, with the panic, or to Dropped, with the reason.
// Messages of one sender arrive in order. A restart keeps the queue; only the
// message that was being handled is reported. A stage that waits for something
// does not keep others from running.
//
// # What protoactor-go is used for, and what is avoided
//
// Used: processes and their addresses, supervision, the public mailbox and
// dispatcher interfaces. Avoided: the stock mailboxes (they drop in silence),
// futures on the hot path, receive timeouts, stashing, escalation at a
// guardian, the built-in metrics, and dead letters as a means of accounting.
package actors
