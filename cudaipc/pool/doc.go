// Package pool adds a second memory, on a GPU, to a store: [Pool] and [Exports] are devices of
// package shmstore, whose pieces belong to objects and live as long as they do.
//
// # Pools
//
// A [Pool] has arenas, which it gets from a cudaipc.Device when the pieces in use do not fit the
// present ones, up to a bound. Each piece of a pool is a chunk of an arena. An arena that has been
// empty for a while is closed, except the first one, so that an empty pool always has space.
//
// On a device without descriptors, arenas are allocations that other processes open by a handle
// ([HandleArena]). They stay until the pool is closed: CUDA does not allow freeing memory that
// another process has open.
//
// # Exports
//
// [Exports] retains memory of other owners. Its pieces take no space: a piece is a function that
// releases the memory to its owner.
//
// # Words
//
// Every piece has a slot in the words segment, which other processes map for reading: the slot
// tells them when the contents are ready, or that they never will be. Slots are reused with a new
// generation, and a piece is named by slot and generation, so a message about an old piece never
// matches the new one.
//
// # Freeing pieces
//
// The store frees a piece when its object is evicted, which the store alone decides, and does not
// wait for streams. Readers release their leases when their streams are done. The producer's stream
// may still write to a piece that is freed, for instance after its reader died. So a piece whose
// ready word was not written is late when it is freed, and is allocated again only after the word
// is written. A producer that aborts a reservation waits until its own streams do not touch the
// piece, and then calls Fail. No stream touches a piece before Chunk or Piece was called for it:
// such a piece needs neither.
//
// # Concurrency
//
// Allocate, Free and Grow are for the store's writer. All other methods are safe for concurrent
// use; those that name a piece are for its holder. The locks of a [Pool] and of [Exports] come last:
// no hook is called under them, and nothing is made or closed on the device.
package pool
