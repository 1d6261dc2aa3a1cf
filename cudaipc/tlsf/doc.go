// Package tlsf allocates ranges of a memory that the CPU cannot reach, such as a GPU's: two-level
// segregated fit, with all records on the host's side.
//
// Free blocks are in lists by their size: one for each thirty-second of each power of two. Two bit
// maps say which lists have blocks, so a free block is found with a few instructions, for any
// number of blocks, and a freed block joins its free neighbours at once. The price: a block that
// would just fit may be missed, if it is not among the first of its class.
//
// An [Allocator] is for one goroutine at a time.
package tlsf
