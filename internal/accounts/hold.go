package accounts

import "time"

// Hold is one payload that the other process has. Delivery, Value or Returned says what it is.
type Hold struct {
	Delivery Delivery // that the other process has not finished; nil: it is none, or finished
	Value    Value    // of the exchange
	Returned func()   // called once, without locks, when a payload of a node's is given back

	Bytes  int
	At     time.Time // since when the other process has it
	Source uint32    // of the host's: whose task it is for, or of which a node has sent it

	// For reports:
	Edge int
	Seq  uint64

	state     HoldState
	finishing bool              // the other process has said that it is done
	released  bool              // ... and that the payload may go
	segment   *announcedSegment // memory of ours that it lies in; nil: it came in a message, or lies elsewhere
	kept      Held              // the payload of a delivery that is finished; nil: it is none
}

// Delivery is a delivery that was sent to the other process.
type Delivery interface {
	// Hold keeps its payload beyond its end. It is called with the account's lock held.
	Hold() Held
}

// Held is a payload that is kept.
type Held interface {
	Hold() Held // ... once more
	Release()
}

// Value is a value of the exchange that the other process has got.
type Value interface {
	// GiveBack ends the other process's hold of it.
	GiveBack()
}

// HoldState says what the other process has a payload for.
type HoldState uint8

// What it has one for.
const (
	Sent    HoldState = iota // it has not finished the delivery
	Kept                     // it has, and reads the payload still
	Fetched                  // it has got the value under a key
	HungUp                   // it has hung up, and lives: it may be reading
)

// State is what the other process has it for. It is for what an account calls with its lock held.
func (h *Hold) State() HoldState { return h.state }

// Alone reports whether it lies in memory that is for it alone.
func (h *Hold) Alone() bool { return h.segment != nil && h.segment.alone }

// ForgetAlone says that memory for this payload alone was sent with it: the other process
// forgets it by itself. It is for what Account.Hold calls.
func (h *Hold) ForgetAlone() {
	if h.Alone() {
		h.segment = nil
	}
}

// keep, with the account's lock held, has the payload of a delivery outlive it.
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

// Free gives back a payload that is in no account any more.
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

// Tally is payloads, added up.
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
