// Package process watches processes by their pidfds, and has what is done with descriptors that
// processes hand each other: it knows no connection.
//
// A [Process] stands for the process that was there when the watch began, never for one that
// has got its number since. Its methods are safe for concurrent use.
package process
