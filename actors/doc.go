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
// # Waking
//
// A goroutine that waits raises a flag and looks again; one that could end the wait
// changes something and then looks at the flag. Go's atomics have one total order, so
// one of the two sees the other: no wake-up is lost, and nothing polls.
//
//   - The writer, when it lacks room, raises the store's wantRoom. Every release, drop,
//     unpin and abort looks at it, and the first posts one message to look again. A
//     reader in another process looks at the same flag; how it wakes the owner is for
//     the program to arrange (shmstore's Reader.OnRoom).
//   - A producer that waits for room has its place in the writer's queue, which is
//     answered in order; see waiters.go for who blocks whom.
//   - A sender that waits for room in a mailbox is among its waiters; the actor lets
//     one in after each message that it took.
//   - An actor is idle or running. Every post looks which; the dispatcher wakes the
//     worker that parked last, and [Stage.PostAndRun] runs an idle actor on the
//     sender's goroutine instead.
//
// When the writer starts to wait for room it says so (Writer.scarce) and takes unused
// reservations back from all extents. A producer that has put an extent aside looks
// at scarce afterwards, so none lies idle while a reservation waits.
//
// # What protoactor-go is used for, and what is avoided
//
// Used: processes and their addresses, supervision, the public mailbox and
// dispatcher interfaces. Avoided: the stock mailboxes (they drop in silence),
// futures on the hot path, receive timeouts, stashing, escalation at a
// guardian, the built-in metrics, and dead letters as a means of accounting.
package actors
