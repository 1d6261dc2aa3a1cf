// Package actors runs the work of the bus as protoactor-go actors. No other
// package of the bus imports protoactor-go.
//
// Three kinds of actor share one [System]:
//
//   - the writer ([Writer]) is the sole owner of a payload store's accounts.
//     Producers ([Producer]) reserve space through it. If the writer is idle, it
//     runs on the producer's goroutine. Producers fill their space outside the
//     writer, in parallel. Small payloads come from extents, which are many
//     reservations granted at once: most of them need no request to the writer;
//   - stages ([Stage]) handle messages, one at a time, behind a bounded
//     mailbox ([Mailbox]), on a dispatcher that reuses its goroutines
//     ([Dispatcher]);
//   - the supervisor is the parent of all stages. It restarts a stage whose
//     handler panicked. It receives every message that was accepted and will
//     never be handled, so that the resources of the message can be released.
//
// # Promises
//
// Each message posted to a stage is handled once or reported once to its
// [Receiver]: to Failed, with the panic, or to Dropped, with the reason.
// Messages of one sender arrive in order. A restart keeps the queue; only the
// message that was being handled is reported. A stage that blocks does not keep
// other stages from running.
//
// # Waking
//
// A waiting goroutine sets a flag and then checks its condition again. A goroutine that
// changes the condition then checks the flag. Go's atomics have one total order, so one
// of the two sees the other: no wake-up is lost, and neither side polls.
//
//   - When the writer lacks space, it sets the store's wantRoom flag. Every release, drop,
//     unpin and abort checks the flag, and the first one posts one retry message. A
//     reader in another process checks the same flag; the program arranges how that
//     reader wakes the owner (shmstore's Reader.OnRoom).
//   - A producer that waits for space has an entry in the writer's queue, which is
//     served in order; see reserve_queue.go for which entry blocks which.
//   - A sender that waits for space in a mailbox is in Mailbox.waitingSenders; the actor
//     admits one sender after each message that it takes.
//   - An actor is idle or running, and every post checks which. If the actor is idle,
//     the dispatcher wakes the worker that parked last, or [Stage.PostAndRun] runs the
//     actor on the sender's goroutine.
//
// When the writer starts to wait for space in the arena, it sets Writer.scarce and takes
// unused reservations back from all extents. A producer that keeps an extent checks
// scarce afterwards: no extent lies unused while a reservation waits.
//
// # What protoactor-go is used for, and what is avoided
//
// Used: processes and their addresses, supervision, the public mailbox and
// dispatcher interfaces. Avoided: the stock mailboxes (they drop messages without a
// report), futures on the hot path, receive timeouts, stashing, escalation at a
// guardian, the built-in metrics, and dead letters as a means of accounting.
package actors
