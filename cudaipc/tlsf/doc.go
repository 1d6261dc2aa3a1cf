// Package tlsf shares out a memory that the CPU cannot reach, such as a GPU's:
// two-level segregated fit, with all books on the host's side.
//
// Free blocks are kept in lists by their size: one for each thirty-second of each
// power of two. Two bit maps say which lists have blocks, so that room is found
// with a few instructions, however many blocks there are, and a block that is
// freed joins its free neighbours at once. What that costs is that a block which
// would just fit may be overlooked, if it is not among the first of its class.
//
// An [Allocator] is for one goroutine at a time.
package tlsf
