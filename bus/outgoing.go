package bus

// spend, with the account's lock held, takes the delivery's credit, or its place in the window alone, to be
// given back while its payload is still needed.
func (h *hold) spend(bytesToo bool) (f *flow, credit uint64) {
	if h.d == nil {
		return nil, 0
	}
	// Not finished, so that nobody else looks at its credit.
	if h.d.credit >= oneDelivery {
		credit = oneDelivery
	}
	if bytesToo {
		credit += h.d.credit & bytesMask
	}
	h.d.credit -= credit
	return h.d.flow, credit
}

// give returns the credit that spend took.
func give(f *flow, credit uint64) {
	if credit != 0 {
		f.give(credit)
	}
}
