//go:build amd64 && !race

package shmstore

// Go has no relaxed atomic store, and its sequentially consistent one costs a
// locked instruction: with 64 readers charged for a put, 64 of them. The two
// functions below are that missing store. The memory model allows it: a race
// on a value of a machine word or less yields some value that was written,
// never a mixture. The directory word orders these stores: a reader that
// reads such a value has seen the word live or closing before and after.
//
// That is enough where stores become visible in program order, as on amd64.
// Elsewhere a new debt could be seen before the word that ends the old object's
// closing, and a stale handle could collect it (docs/model/fence.pml, mistake 4).
// There, and in builds with the race detector, the stores are real atomics.

func relaxedStore64(p *uint64, v uint64) { *p = v }
func relaxedStore32(p *uint32, v uint32) { *p = v }

// lastStoreFences says that every process sees relaxed stores followed by one atomic
// store before any later atomic load of this goroutine is done. Go's memory
// model does not promise it for the relaxed ones; amd64 does: stores become
// visible in program order, and the atomic one is an XCHG, which waits for them
// all and lets no later load pass.
//
// The reader's half is an atomic addition to its pin and then an atomic load of the word.
// If both sides missed each other's stores, these orders would make a cycle, which the
// architecture excludes.
const lastStoreFences = true
