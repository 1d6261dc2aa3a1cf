// Package hang detects a program that hangs: work waits, and there is no progress.
//
// A [Watcher] probes the program periodically. A probe returns a figure that changes with any
// progress, and names the waiting work. The program hangs when work waits and the figure stays
// the same for longer than a bound. A probe that does not return counts as no progress: it may
// wait for a lock that is never released. So each probe has a goroutine of its own, and at most
// one probe runs.
//
// [WriteGoroutines] writes the stack of each goroutine.
package hang
