// Package bench measures what the store, the mailbox and the bus cost, each
// beside plain Go that does the same: channels, copies, nothing. It serves both
// `omnibus bench` and `go test -bench . ./internal/bench`.
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
// Run has the process to itself: allocations, memory and processor time are
// those of the whole process, whoever causes them.
package bench
