// Package tensorqueue is a queue of items with tensors in them, between processes, for programs that
// have no pipeline: producers put items, and the first waiting getter gets each one. One process owns
// the queue, others join it; all of them may put and get.
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
// The queue is a bus with one stage, at its owner, which matches puts and gets. Payloads go from the
// process that put them to the process that gets them, and stay where they were written. How tensors in
// the memory of a GPU travel is the queue's [Options.Transport], as for an edge of a pipeline: see
// package cudaipc/lane.
//
// # Order and delivery
//
// Items are got in the order of their puts: if a Put has returned before another Put begins, in any
// process, its item comes first. Concurrent Puts are ordered by their arrival at the owner.
//
// Each item is given to one getter at a time, and is done when that getter has closed it. If the getter
// dies or closes its queue before that, the item goes back to its position in the queue: delivery is at
// least once, and [Item.Attempt] says how often an item went to a getter that departed. The items of a
// process that dies come back one by one, and a waiting getter may get a later one first. A Get that
// times out loses no item and changes no order.
//
// An item lies in its producer's memory. Items of a process that dies, or closes its queue, are
// therefore withdrawn if they are not taken; [Queue.Drain] waits until all items of this process are
// done. Taken items stay valid, except tensors on a GPU that were still being written: see
// [lane.ErrPoisoned].
//
// # Bounds
//
// A queue holds up to [Options.MaxSize] items that are not taken; Put waits while it is full. With a
// MaxSize of 0 the bounds are memory and [LargestSize]:
//
//   - An item takes about 10 KB of the owner's memory, for its request, and as much of its
//     producer's.
//   - Its tensors lie in the memory of its producer. The first [Options.StoreBytes] of all items lie
//     side by side. Each further item gets memory of its own, after Put has waited 20 ms for space in
//     the store. If the machine has no memory for an item beyond the tenth that it keeps back, Put
//     fails with [shmstore.ErrMemory], and the item is not in the queue.
//   - A client in Python uses its arena_bytes in this way, and then a segment for each item at once.
//     With 3,072 of those, or without memory, its put raises OutOfMemory.
//
// Items that are taken and not closed do not count; there may be [MaxTaken] of them, together with the
// Gets that wait. [Options.MaxItemBytes] bounds the host memory of one item. Its tensors in a GPU's
// memory do not count, unless they travel by bus.TensorsDefault.
//
// # When the owner is gone
//
// A queue lives as long as its owner. When the owner closes it or dies, all operations in all processes
// end with [ErrClosed], and items that are not taken are dropped. Taken items stay valid until they are
// closed.
//
// # On the wire
//
// For clients in other languages, in addition to docs/protocol.md: the bus has the queue's name, and so
// has its only stage.
//
//   - To put: submit a request whose first input is a bundle (codec 7) of the map
//     {"rid": string, "shm_name": string, "inputs": map or nil}. Its only result is a word, a string in
//     MessagePack: "queued" when the item is in the queue, "closed", or "busy" when more than
//     [MaxWaiting] puts wait. Then end the inputs, or do so with the bundle. To stop waiting, send the
//     string "back" as the last input: the word is "full" if the item is not in the queue, and "queued"
//     if it has entered the queue meanwhile. The request is complete when the item is done. A request
//     that is aborted or closed before that withdraws its item, unless a getter has it.
//   - To get: submit a request, and send the string "get" in MessagePack as its first input. Its only
//     result is the bundle that was put, with the attribute "attempt" if an earlier getter departed
//     with it; or the word "closed", or "busy" when there are more than [MaxTaken]. When the item is
//     done, finish the result and end the inputs. To stop waiting, or to give the item back, send the
//     string "back" as the last input. A request that is aborted or closed also gives the item back, a
//     moment later.
//   - To be faster: submit the request for the next put or get ahead, together with the end of the one
//     before. The queue ignores a request that waits for its first input, but the request takes one of
//     the permits for requests, of which there are 256 more than the queue needs. So have one such
//     request at a time, and submit it with flag 1.
//   - To ask: call the method "size", without arguments. The answer is the object {"size": items that
//     are not taken, "max_size": the bound, "taken": items that are taken and not done}.
package tensorqueue
