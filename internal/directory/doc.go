// Package directory is the host's table of descriptors under names, in which processes find the GPU
// memory of each other and its synchronization words.
//
// # Promises
//
// A name has one publisher at a time. The names of a process are withdrawn when it has died or
// hung up. The directory asks the kernel for that, so that a process that joins again does not find
// its own names taken. The directory maps no memory; it keeps descriptors and passes them on, with
// a pidfd of the process that published them. The number of names is bounded, for each process and
// for all.
//
// # Concurrency
//
// All methods are safe for concurrent use. The lock of a [Directory] comes before that of
// [Watches], and before those of the senders that its users call in Lookup.
package directory
