// Package directory is the host's table of descriptors under names: where processes find the GPU
// memory and the words of each other.
//
// # Promises
//
// A name has one publisher at a time. What a process has published is gone when it has died or
// hung up: the kernel is asked, so that a process that comes again does not find its own names
// taken. The table maps nothing; it keeps descriptors and passes them on, with a pidfd of the
// process that published them. It has bounds for each process and for all of them.
//
// # Concurrency
//
// All methods are safe for concurrent use. The lock of a [Directory] comes before that of
// [Watches], and before those of the senders that its users call in Lookup.
package directory
