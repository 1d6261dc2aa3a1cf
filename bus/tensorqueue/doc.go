// Package tensorqueue is a queue of items with tensors in them, between
// processes, for programs that have no pipeline: a producer puts, whoever comes
// first gets. One process owns the queue, others join it; all of them may put and
// get.
//
//	q, err := tensorqueue.Open(ctx, tensorqueue.Options{Transport: bus.TensorsPool, GPU: gpu})
//	q, err := tensorqueue.Join(ctx, tensorqueue.Options{GPU: gpu}) // elsewhere
//	...
//	err = q.Put(ctx, rid, shmName, map[string]any{"pixel_values": tensor}, tensorqueue.PutOptions{Stream: stream})
//	...
//	item, err := q.Get(ctx) // elsewhere
//	inputs, err := item.Unwrap(stream, device, alloc)
//	err = item.Close()
//
// It is a bus with one stage, at its owner, which matches puts and gets: payloads
// go from the process that put them to the one that gets them, and lie where they
// were written. How tensors in the memory of a GPU travel is the queue's
// [Options.Transport], as for an edge of a pipeline: see package cudaipc/lane.
//
// # Order and delivery
//
// Items are got in the order in which they were put: what a Put that has returned
// put comes before what a later one puts, from whatever process. Among those that run
// at the same time the order is that in which they reach the owner.
//
// Each item is handed to one getter at a time, and done when that has closed it. A
// getter that dies, or closes its queue, before that gives the item back, to where it
// was in the queue: delivery is at least once, and [Item.Attempt] says how often.
// Those of a process that dies come back one by one, and who waits may get a later one
// first. A Get that times out loses nothing, and changes no order.
//
// An item is its producer's memory. So items that were put by a process that dies,
// or closes its queue, and that nobody has taken, are withdrawn: [Queue.Drain] waits
// until there are none. Items that somebody has stay valid, but for tensors on a GPU
// that were still being written: see [lane.ErrPoisoned].
//
// # Bounds
//
// A queue holds up to [Options.MaxSize] items that have not been taken; Put waits while
// it is full. With a MaxSize of 0 what bounds them is memory, and [LargestSize]:
//
//   - An item takes about 10 KB of the owner's memory, for its request, and as much of its
//     producer's.
//   - Its tensors lie in the memory of its producer: the first [Options.StoreBytes] of all
//     that it has put side by side, and then each item in memory of its own, after Put has waited
//     20 ms for others to go. A Put for whose item the machine has no memory beside the tenth
//     that it keeps back fails with [shmstore.ErrMemory], and the item is not in the queue.
//   - A client in Python has its arena_bytes so, and then a segment for each item at once; with 3,072
//     of those, or without memory, its put raises OutOfMemory.
//
// Items that are taken and not closed do not count, and there may be
// [MaxTaken] of them, with the Gets that wait. What an item takes in host memory is
// bounded by [Options.MaxItemBytes]: its tensors in a GPU's memory are not part of
// it, unless they travel by bus.TensorsDefault.
//
// # When the owner is gone
//
// A queue lives as long as its owner. When it is closed, or dies, all operations
// everywhere end with [ErrClosed], and what nobody has taken is dropped. Items that
// were taken stay valid until they are closed.
//
// # On the wire
//
// For clients in other languages, beside docs/protocol.md: the bus has the queue's
// name, and so has its only stage.
//
//   - To put: submit a request whose first input is a bundle (codec 7) of the map
//     {"rid": string, "shm_name": string, "inputs": map or nil}. Its only result is a
//     word, a string in MessagePack: "queued", when the item is in the queue, "closed",
//     or "busy" when more than [MaxWaiting] wait to put. Then end the inputs, or do so with the
//     bundle. To stop waiting, send the string "back" as the last input: the word is "full" if the item
//     is not in the queue, and "queued" if it came to be meanwhile. The request is complete when
//     the item is done; one that is aborted or closed before that withdraws its item, unless
//     somebody has it.
//   - To get: submit a request, and send the string "get" in MessagePack as its first
//     input. Its only result is the bundle that was put, with the attribute
//     "attempt" if it came before; or the word "closed", or "busy" when there are more
//     than [MaxTaken]. When the item is done, finish the result and end the inputs. To
//     stop waiting, or to give the item back, send the string "back" as the last input.
//     A request that is aborted or closed gives the item back too, a moment later.
//   - To be quicker: submit the request for what is put or got next ahead, together with the
//     end of the one before. One that waits for its first input is nothing to the queue, but
//     takes one of the places for requests, of which there are 256 more than the queue needs:
//     so have one at a time, and submit it with flag 1.
//   - To ask: call the method "size", without arguments. The answer is the object
//     {"size": items that nobody has taken, "max_size": the bound, "taken": items that
//     are not done}.
package tensorqueue
