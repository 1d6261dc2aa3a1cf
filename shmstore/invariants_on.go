//go:build race || invariants

package shmstore

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// invariantsOn makes a store fill the bytes of freed objects with 0xdb, and
// readers keep a list of their open leases, so that the release of a second copy of
// a lease panics. It is on with the race detector and with the build tag invariants.
const invariantsOn = true

// leaseSerial identifies a lease of a reader.
type leaseSerial uint64

// leaseBook lists the open leases of a reader.
type leaseBook struct {
	mu     lockorder.Mutex[lockorder.LeaseBook]
	serial leaseSerial
	leases map[leaseSerial]struct{}
}

func (b *leaseBook) open() leaseSerial {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leases == nil {
		b.leases = make(map[leaseSerial]struct{})
	}
	b.serial++
	b.leases[b.serial] = struct{}{}
	return b.serial
}

func (b *leaseBook) close(serial leaseSerial, l *Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.leases[serial]; !ok {
		panic(fmt.Sprintf("shmstore: Release of a copy of a lease on %v that was released before", l.Handle()))
	}
	delete(b.leases, serial)
}
