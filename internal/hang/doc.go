// Package hang finds a program that hangs: nothing moves, and work waits.
//
// A [Watcher] probes the program again and again. A probe gives a figure that changes when
// anything moves, and says what waits. The program hangs when the figure stays the same, and
// work waits, for longer than a bound. A probe that does not return counts as no movement: it
// may wait for a lock that is held for good. So each probe has a goroutine of its own, and
// there is at most one.
//
// [WriteGoroutines] writes where each goroutine stands.
package hang
