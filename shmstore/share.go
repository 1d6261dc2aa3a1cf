package shmstore

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/codec"
)

// SetCodec changes the codec in the future handle, for a
// producer that took the reservation out of an extent. Call it before Commit.
func (r *Reservation) SetCodec(c codec.ID) {
	r.mustBeOpen("SetCodec")
	relaxedStore32(&r.view.lines[r.slot].codec, uint32(c))
}

// Share charges the local reader n more times for the object under the lease,
// so that a stage can pass on a payload that it received without copying it. The lease
// itself keeps the object in place meanwhile. It is for leases of the owner's
// process; elsewhere, and after Release, the error is [ErrUnsupported] or
// [ErrClosed]. The local reader may owe 2^30 deliveries of one object; beyond that
// the error is [ErrFull], and nothing is charged.
func (l *Lease) Share(n int) error {
	switch {
	case l.view == nil:
		return fmt.Errorf("share a released lease: %w", ErrClosed)
	case l.view.id != LocalReader || l.view.remote:
		return fmt.Errorf("share %v: %w: only the local reader's leases can be shared", l.Handle(), ErrUnsupported)
	case n < 0 || n > maxDebts:
		return fmt.Errorf("share %v %d times: %w", l.Handle(), n, ErrSize)
	}
	// The lease is released after this, so a writer that sees its debt settled or its pin
	// lowered also sees the new debts: see evict.
	owed, e := &l.view.owed[l.held.slot], &l.view.ledger[l.held.slot]
	for {
		done := e.done.Load() // read first, as in openDebts
		now := atomic.LoadUint32(owed)
		if now-done > maxDebts-uint32(n) {
			return fmt.Errorf("share %v %d times: %w: %d deliveries are owed already", l.Handle(), n, ErrFull, now-done)
		}
		if atomic.CompareAndSwapUint32(owed, now, now+uint32(n)) {
			return nil
		}
	}
}
