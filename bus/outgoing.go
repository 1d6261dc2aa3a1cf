package bus

import "time"

// outgoing is a delivery that was sent to another process and that has not been
// given back. It is guarded by the lock of the link or pair that it is in.
type outgoing struct {
	d        *Delivery // nil: it is finished, and only its payload is waited for
	returned func()    // called once, without the lock, when it is given back
	own      uint32    // the segment that was offered for it alone; 0: none
	kept     bool      // it is handled, and its payload is still needed
	lent     bool      // the peer passes it on: others may read it when the peer is dead

	// For reports: of which source of the host's, and since when.
	source uint32
	edge   int
	seq    uint64
	bytes  int
	at     time.Time
}

// spend takes the delivery's credit, or its place in the window alone, to be
// given back while its payload is still needed.
func (o *outgoing) spend(bytesToo bool) (f *flow, credit uint64) {
	if o.d == nil {
		return nil, 0
	}
	// Not finished, so that nobody else looks at its credit.
	if o.d.credit >= oneDelivery {
		credit = oneDelivery
	}
	if bytesToo {
		credit += o.d.credit & bytesMask
	}
	o.d.credit -= credit
	return o.d.flow, credit
}

// give returns the credit that spend took.
func give(f *flow, credit uint64) {
	if credit != 0 {
		f.give(credit)
	}
}
