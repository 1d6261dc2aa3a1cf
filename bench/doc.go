// Package bench measures omnibus beside others that carry messages: Run has a table with a row
// for each kind of work, for `omnibus-bench`. RunIPC measures payloads beside sockets, for `omnibus-bench ipc`; RunGPU
// tensors in the memory of a GPU, beside raw copies, for `omnibus-bench gpu`. What parts of a bus cost
// is measured by the benchmarks of their packages.
//
// Users' stages compute. With Options.Busy processes do so beside what is measured, and
// figures are means of all rounds: a wait for a processor is a part of the cost.
//
// Every figure is a cost, so that lower is better, for ratios too: a copy that
// must reach 0.9 of another's speed has a target of 1/0.9 on the ratio of times.
// A target is for a quiet machine. Missing one is a finding and not an error.
//
// # Between processes
//
// There, every means is a side of a race, with a process of its own at the other
// end: this program once more, which calls Peer. A round gives each side a slice
// of some milliseconds, in turn, and in an order in which each comes behind every other
// equally often. The best slices count, of either side: both processes need a processor, and what
// else runs on the machine can only make a slice slower. The quartiles are still
// those of the rounds' ratios, and say how much it did. Most figures are speeds,
// the baseline's time by ours, with an x behind them.
//
// Whoever receives a payload reads a byte of each of its cache lines, and the run
// fails when they do not add up to what was sent. A payload that is offered, and not copied,
// was written into the store before the clock started. The floor is what the
// machine does without any protocol: beside it one sees which targets can be
// reached, and what ours costs. Where processes spin, each
// has a processor of its own for that time; nobody else is told where to run.
//
// # Peers
//
// There, each side is the processes that a user would have: a caller, which is this process, a
// host of a bus or a server, and those that do the work. Every byte of a payload is read where
// it arrives. A side runs as often as fills its slice, in each round, in the order of a race.
// Figures are medians of all rounds, whether processes compute beside or not: peers are compared as they
// are, and not at their best. A factor is omnibus by the peer, the median of the rounds' own.
//
// A peer is taken as its documentation has it, and relays no more than it has to: gRPC and sockets
// connect the two ends directly, NATS has its server in between. A host stands between the ends
// of a request; so each of the first two is there with a process in between as well. Peers
// keep no books, repeat nothing and see no deaths.
//
// # GPUs
//
// There, this process sends and a peer receives, each with the GPU open, a store and a
// lane of tensors of its own; handles travel in the lanes of a race. A round
// sends some tensors until the peer answers that it is done with the last, and
// then has the GPU make as many raw copies of as many bytes, in one go. When the GPU of
// the peer begins, its stream writes a word, which the peer spins on to see; both
// processes read the same clock. Tensors that travel another way than they should
// fail the run.
//
// A GPUProducer sends tensors to consumers that are no Go programs, and measures
// nothing: scripts/gpu_torch.py does, in PyTorch, beside torch.multiprocessing.
//
// Ordering is no figure but a count of mistakes. Streams are held up by copies, as many as
// take 200 ms; what is wrong on purpose has to show, or the others say nothing.
//
// Leases are counted when nothing is on its way: each process waits for its streams,
// and until all that it received is settled, collects garbage, and counts what it has
// itself; the two are added up. That is done after as many as use every slot once, and
// again at the end. What is shown is the difference. Memory of the GPU is what the
// driver says is in use on all of it.
//
// Whoever is killed is dead when its pidfd is readable: until then the kernel takes it
// down, and nobody can do anything. Its chunks are free when a stage of a bus that was
// waiting for them has them all, so that the time is that of everything in between. A
// pool that had other room would show: the stage would not wait.
//
// # Concurrency
//
// Run, RunIPC and RunGPU have the process to themselves: allocations,
// memory and processor time are those of the whole process, whoever causes them.
//
// # What a crash leaves
//
// A peer ends when its standard input does, and so with the process that measures.
// What they share has no name, but for sockets in a temporary directory, which a
// crash leaves behind, and values under keys: the next connector of omnibus that is opened
// removes a segment of omnibus. A file of vLLM-Omni's connector stays in /dev/shm, with a name
// that has omnibus-bench in it.
package bench
