package shmstore

import (
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// Lease is the right to read one object. It is released exactly once; until
// then the bytes do not change. It is a plain value so that taking one
// allocates nothing: pass it on by moving it, and release only one of its
// copies. With the race detector, or the build tag invariants, the release of a
// second copy panics.
//
// It has the largest size that the compiler keeps in registers, and nests its
// fields because such a struct has at most four of them. A larger struct is
// copied through the stack wherever it is returned, with wider moves than it was
// stored with, which stalls the processor: Take then takes half as long again. So
// a lease leaves out generation and codec, which the directory line keeps while
// the object is held.
type Lease struct {
	view    *leaseView
	payload extent
	held    heldSlot
}

// leaseView is the part of a reader that a lease uses. A lease on a large
// object has a view of its own, which differs in the memory alone: so a read of an
// object in the arena needs no check for large ones.
type leaseView struct {
	geo      geometry
	data     []byte // the arena, or the segment of a large object
	lines    []line
	ledger   []entry         // written by this reader, read by the owner
	owed     debtColumn      // written by the owner
	taken    []atomic.Uint32 // debts ever collected; private to this reader
	wantRoom *atomic.Uint32  // the doorbell's flag
	doorbell *doorbell
	leases   *leaseBook
	segment  *segment // that memory is in, of a large object: a lease keeps it mapped
	remote   bool     // in another process than the owner
	id       ReaderID
}

// extent is the range of a payload in its memory.
type extent struct{ offset, size uint64 }

// heldSlot is the slot of a leased object, and the kind of its hold.
type heldSlot struct {
	serial leaseSerial
	slot   uint32
	by     holdKind
}

// holdKind tells whether a debt or a pin keeps a leased object in place.
type holdKind uint8

const (
	heldByDebt holdKind = iota + 1
	heldByPin
)

// newLease returns a lease on an object that a debt or a pin holds already. The view is
// the object's: in a segment of its own, it begins at 0.
func newLease(v *leaseView, h *Handle, held holdKind) Lease {
	return Lease{
		view:    v,
		payload: extent{h.Offset &^ largeOffset, h.Size},
		held:    heldSlot{serial: v.leases.open(), slot: h.Slot, by: held},
	}
}

// Bytes is the object: a view that must not be written to, valid until
// Release. In a process other than the owner's, writing to it is fatal.
// After Release it is nil.
func (l *Lease) Bytes() []byte {
	if l.view == nil {
		return nil
	}
	// The handle was checked against the size of the mapping.
	begin, end := l.payload.offset, l.payload.offset+l.payload.size
	return l.view.data[begin:end:end]
}

// Handle names the object. After Release it is zero.
func (l *Lease) Handle() Handle {
	if l.view == nil {
		return Handle{}
	}
	ln := l.line()
	return Handle{
		Store:  l.view.geo.store,
		Gen:    genOf(ln.word.load()),
		Offset: atomic.LoadUint64(&ln.offset),
		Size:   l.payload.size,
		Slot:   l.held.slot,
		Codec:  atomic.LoadUint32(&ln.codec),
	}
}

// line is the directory line of the object. Under a lease only its state changes, between
// live and closing.
func (l *Lease) line() *line { return &l.view.lines[l.held.slot] }

// Release settles the debt or lowers the pin. Releasing a lease twice is a bug that could
// free bytes that another lease reads; it panics.
func (l *Lease) Release() {
	v := l.view
	if v == nil {
		panic("shmstore: Release of a lease that was released before, or never taken")
	}
	v.leases.close(l.held.serial, l)
	faultpoint.Hit("before-release")
	slot := l.held.slot
	e := &v.ledger[slot]
	if l.held.by == heldByPin {
		if e.pin.Load() == 0 {
			l.panicReleased()
		}
		e.pin.Add(^uint32(0))
	} else {
		if e.done.Load() == v.taken[slot].Load() {
			l.panicReleased()
		}
		e.done.Add(1)
	}
	l.view = nil
	v.pressDoorbell()
}

// pressDoorbell is called after every change of the ledger that may have freed
// space.
func (v *leaseView) pressDoorbell() {
	if v.wantRoom.Load()%2 == 1 {
		v.doorbell.notify()
	}
}

// panicReleased reports the release of a second copy of a lease. In every build most of
// them are found before they do harm, because the reader holds nothing of this slot then.
func (l *Lease) panicReleased() {
	panic(fmt.Sprintf("shmstore: Release of a copy of a lease on %v that was released before", l.Handle()))
}
