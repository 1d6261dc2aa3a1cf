package shmstore

import "sync/atomic"

// doorbell wakes a writer that waits for room. The flag is in the directory,
// on a cache line of its own: the owner writes it, every release of every
// process reads it. It counts up each time it is raised or lowered and is odd
// while raised, so that a sleep costs one write and two sleeps can be told
// apart.
//
// No wake-up is lost, because both sides write first and look second: the
// writer raises the flag and then looks at the ledgers, a reader moves its
// ledger and then looks at the flag, and Go's atomics are totally ordered.
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

// press is called after every step that may have made room.
func (d *doorbell) press() {
	if d.flag.Load()%2 == 1 {
		d.notify()
	}
}

// notify is apart from press, and not to be inlined itself, so that press is
// small enough to be.
//
//go:noinline
func (d *doorbell) notify() {
	if ring := d.onRoom.Load(); ring != nil {
		(*ring)()
	}
}
