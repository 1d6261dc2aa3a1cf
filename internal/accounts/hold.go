package accounts

import "time"

// Hold is one payload that the other process has. Its kind is given by the field that is set:
// Delivery, Value or Returned.
type Hold struct {
	Delivery Delivery // unfinished; nil: it is no delivery, or finished
	Value    Value    // of the exchange
	Returned func()   // called once, without locks, when the payload of a node is given back

	Bytes  int
	At     time.Time // since when the other process has it
	Source uint32    // at the host: the source that it was sent for, or by

	// For reports:
	Edge int
	Seq  uint64

	state     HoldState
	finishing bool              // the other process has finished it
	released  bool              // ... and has released the payload
	segment   *announcedSegment // memory of this process; nil: the payload was in a message, or lies elsewhere
	kept      Held              // the payload of a finished delivery; nil: it is none
}

// Delivery is a delivery to the other process.
type Delivery interface {
	// Hold keeps the payload beyond the end of the delivery. It is called with the account's lock held.
	Hold() Held
}

// Held is a reference to a payload that outlives its delivery.
type Held interface {
	Hold() Held // one more reference
	Release()
}

// Value is a value of the exchange that the other process has fetched.
type Value interface {
	// GiveBack ends the other process's hold of the value.
	GiveBack()
}

// HoldState is the state of a hold.
type HoldState uint8

// States of a hold.
const (
	Sent    HoldState = iota // the other process has not finished the delivery
	Kept                     // it has finished the delivery and still reads the payload
	Fetched                  // it has fetched the value
	HungUp                   // it has hung up and lives: it may still read
)

// State is the state of the hold. Functions that an account calls with its lock held may call it.
func (h *Hold) State() HoldState { return h.state }

// Alone reports whether the payload has a segment of its own.
func (h *Hold) Alone() bool { return h.segment != nil && h.segment.alone }

// ForgetAlone notes that a segment for this payload alone was sent with it: the other process
// forgets the segment by itself. The send function of Account.AddAndSend calls it.
func (h *Hold) ForgetAlone() {
	if h.Alone() {
		h.segment = nil
	}
}

// keep, with the account's lock held, keeps the payload of a delivery beyond its end.
func (h *Hold) keep(as HoldState) {
	h.state, h.kept = as, h.Delivery.Hold()
	h.Delivery = nil
	h.countKept(1)
}

func (h *Hold) countKept(n int) {
	if t := h.segment; t != nil {
		bytes := int64(n * h.Bytes)
		t.keeps, t.keepsBytes = t.keeps+n, t.keepsBytes+bytes
		t.seg.views.bytes.Add(bytes)
	}
}

// Free gives back a payload that was removed from its account.
func (h *Hold) Free() {
	switch {
	case h.Value != nil:
		h.Value.GiveBack()
	case h.Returned != nil:
		h.Returned()
	case h.kept != nil:
		h.kept.Release()
	}
}

// Tally is the sum over some payloads.
type Tally struct {
	Payloads int
	Bytes    int64
	Oldest   time.Time // since when the other process has the oldest
}

func (t *Tally) add(h *Hold) {
	if t.Payloads == 0 || h.At.Before(t.Oldest) {
		t.Oldest = h.At
	}
	t.Payloads++
	t.Bytes += int64(h.Bytes)
}
