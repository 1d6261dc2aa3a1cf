// Package bench measures what the store, the mailbox and the bus cost, each
// beside plain Go that does the same: channels, copies, nothing. It serves both
// `omnibus bench` and `go test -bench . ./internal/bench`. RunIPC does the same
// for payloads that go to another process, beside sockets, for `omnibus bench
// ipc`.
//
// # Method
//
// A scenario is set up once, run once for warming up, and then measured in
// rounds. A round runs ours and the baseline one after the other, each after a
// garbage collection; who goes first alternates. So noise that lasts longer
// than a round, such as a busy neighbour, hits both sides alike. Reported are
// the medians of the rounds. The ratio is the median of the rounds' own ratios,
// not the quotient of the two medians, and comes with its quartiles: where they
// lie far apart the machine was not quiet, and the figures are worth little.
//
// Every figure is a cost, so that lower is better, for ratios too: a copy that
// must reach 0.9 of another's speed has a target of 1/0.9 on the ratio of times.
// A target is for a quiet machine. Missing one is a finding and not an error.
//
// # Between processes
//
// There, every means is a side of a race, with a process of its own at the other
// end: this program once more, which calls Peer. A round gives each side a slice
// of some milliseconds, in turn, and reverses the order every other time. The
// best slices count, of either side: both processes need a processor, and what
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
// # Like with like
//
// Both sides handle the same number of objects of the same size, behind buffers
// of the same length, and copy the payload equally often, unless not copying is
// what is measured. Memory that is copied to has the same size on both sides and
// was touched before. Goroutines and actors are there before the clock starts.
// What each baseline is stands at the type of its scenario.
//
// # Concurrency
//
// Run and RunIPC have the process to themselves: allocations, memory and processor time are
// those of the whole process, whoever causes them.
//
// # What a crash leaves
//
// A peer ends when its standard input does, and so with the process that measures.
// What they share has no name, but for sockets in a temporary directory, which a
// crash leaves behind.
package bench
