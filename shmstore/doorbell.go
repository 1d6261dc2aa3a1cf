package shmstore

import "sync/atomic"

// doorbell wakes a writer that waits for space. The flag is in the directory,
// on a cache line of its own: the owner writes it, every release of every
// process reads it. It counts up each time it is raised or lowered and is odd
// while raised, so that a sleep costs one write and two sleeps differ in their
// number.
//
// No wake-up is lost, because both sides write first and read second: the
// writer raises the flag and then reads the ledgers, a reader changes its
// ledger and then reads the flag, and Go's atomics are totally ordered.
type doorbell struct {
	flag   *atomic.Uint32
	onRoom atomic.Pointer[func()]
}

// setWanted raises or lowers the flag. Only the owner's writer may call it.
func (d *doorbell) setWanted(wanted bool) {
	if now := d.flag.Load(); (now%2 == 1) != wanted {
		d.flag.Store(now + 1)
	}
}

// press is called after every change that may have freed space.
func (d *doorbell) press() {
	if d.flag.Load()%2 == 1 {
		d.notify()
	}
}

// notify is a function of its own, and is not inlined, so that press is small enough
// to be inlined.
//
//go:noinline
func (d *doorbell) notify() {
	if ring := d.onRoom.Load(); ring != nil {
		(*ring)()
	}
}
