//go:build amd64 && !race

package shmstore

// Go has no relaxed atomic store, and its sequentially consistent one costs a
// locked instruction: with 64 readers charged for a put, 64 of them. The two
// functions below are that missing store. The memory model allows it: a race
// on a value of a machine word or less yields some value that was written,
// never a mixture. What orders these stores is the directory word: a reader that
// looks at such a value has seen the word live or closing on both sides.
//
// That is enough where stores become visible in program order, as on amd64.
// Elsewhere a new debt could be seen before the word that ends the old object's
// closing, and a stale handle could collect it (docs/model/fence.pml, mistake 4).
// There, and in builds with the race detector, the stores are real atomics.

func relaxedStore64(p *uint64, v uint64) { *p = v }
func relaxedStore32(p *uint32, v uint32) { *p = v }

// lastStoreFences says that relaxed stores followed by one atomic store are
// all seen, by every process, before any later atomic load is done. Go's memory
// model does not promise it for the relaxed ones; amd64 does: stores become
// visible in program order, and the atomic one is an XCHG, which waits for them
// all and lets no later load pass.
//
// With the half of the reader, an atomic addition to its pin and then an atomic
// load of the word, these orders make a cycle if both sides overlook each other,
// and so the architecture does not let that happen.
const lastStoreFences = true
