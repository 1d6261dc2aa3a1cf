//go:build !race

package shmstore

// Go has no relaxed atomic store, and its sequentially consistent one costs a
// locked instruction: with 64 readers charged for a put, 64 of them. The two
// functions below are that missing store. The memory model allows it: a race
// on a value of a machine word or less yields some value that was written,
// never a mixture. What orders these stores is the directory word, and no
// reader acts on such a value before it has seen the word live on both sides
// of the load. Builds with the race detector use real atomics instead, so
// that it reports every other race.

func relaxedStore64(p *uint64, v uint64) { *p = v }
func relaxedStore32(p *uint32, v uint32) { *p = v }
