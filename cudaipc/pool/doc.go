// Package pool gives a store a second memory, on a GPU: [Pool] and [Exports] are
// devices of package shmstore, whose pieces belong to objects and live as long as
// they do.
//
// # Pools
//
// A [Pool] has arenas, which it gets from a cudaipc.Device when the pieces in use
// do not fit those that it has, up to a bound. Each piece of a pool is a chunk of
// an arena. An arena that has been empty for a while is given back, save the
// first one, so that an empty pool always has room.
//
// On a device without memory that descriptors stand for, arenas are allocations that
// others open by a handle ([Handled]). They stay until the pool is closed: CUDA does
// not allow freeing what another process has open.
//
// # Exports
//
// [Exports] keeps memory that is somebody else's. A piece of it takes no room: it
// is a function that gives the memory back to its owner.
//
// # Words
//
// Every piece has a slot in the words segment, which other processes map for
// reading: there they see when its contents are ready, or that they never will
// be. Slots are used again with a new generation, and a piece is named by both,
// so what is said of an old one is never taken for the new one.
//
// # Who may free what
//
// The store frees a piece when its object goes, which only it can know, and never
// asks what a stream is doing. Readers release their leases when their streams are
// done. Whoever fills the piece may still be at it: a reader that died, say, has
// given up its debt. So a piece whose word is not there yet is late when it is
// freed, and is not given out before it is. Whoever gives a reservation up waits
// until its own streams do not touch the piece, and then has it Fail. A piece that
// nobody has asked about, with Chunk or Piece, no stream touches: it needs neither.
//
// # Concurrency
//
// Allocate, Free and Grow are for the store's writer. All other methods are safe
// for concurrent use; those that name a piece are for whoever holds it.
package pool
