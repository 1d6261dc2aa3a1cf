package bus

// tamper does to a delivery what the edge's Fault asks for. It reports whether
// the delivery is dealt with.
func (f *flow) tamper(d *Delivery) bool {
	fault := FaultNone
	if !d.EOS {
		fault = f.edge.spec.Fault(d.Seq)
	}
	if held := f.swapped; held != nil {
		f.swapped = nil
		f.relaunch(d)
		f.relaunch(held)
		return true
	}
	switch fault {
	case FaultLose:
		d.credit = oneDelivery | uint64(d.cost)
		d.reclaim()
	case FaultDouble:
		twin := d.double()
		f.relaunch(d)
		f.relaunch(twin)
	case FaultSwap:
		f.swapped = d
	default:
		return false
	}
	return true
}

// relaunch sends d past the fault.
func (f *flow) relaunch(d *Delivery) {
	if d.cost != 0 {
		d.credit = oneDelivery | uint64(d.cost)
	}
	f.deliver(d)
}

// double is a second delivery of the same payload, inline so that it owes the
// store nothing, and without credit.
func (d *Delivery) double() *Delivery {
	twin := &Delivery{Delivery: d.Delivery, flow: d.flow}
	if !d.Handle.IsZero() {
		twin.Handle.Gen = 0
		twin.Inline = []byte{}
	}
	return twin
}

// dropSwapped gives up a delivery that waits for the one behind it.
func (f *flow) dropSwapped() {
	o := f.outlet()
	o.mu.Lock()
	d := f.swapped
	f.swapped = nil
	o.mu.Unlock()
	if d != nil {
		d.discard()
	}
}
