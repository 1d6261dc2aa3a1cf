//go:build !race

package shmstore

import "runtime"

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

// lastStoreFences says that relaxed stores followed by one atomic store are
// all seen, by every process, before any later atomic load is done. Go's memory
// model does not promise it for the relaxed ones, so it is claimed only where
// the architecture does:
//
//   - amd64: stores become visible in program order, and the atomic one is an
//     XCHG, which waits for them all and lets no later load pass.
//   - arm64: the atomic store is an STLR, which is ordered after every store
//     before it; the loads are LDARs, each of which is ordered after every STLR
//     before it; and order is transitive, for there is one memory for all.
//
// With the half of the reader, an atomic addition to its pin and then an atomic
// load of the word, these orders make a cycle if both sides overlook each other,
// and so none of the two architectures lets that happen.
const lastStoreFences = runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"
