package bus

import "slices"

// output numbers emissions from 1, to recognise in a repeated handling the
// emissions that were sent before.
type output struct {
	seen   uint64   // emissions of the present handling so far
	latest uint64   // the highest number that was sent
	not    []uint64 // numbers below latest that were not sent: they wait, or failed
}

// next numbers an emission, and reports whether it was sent before.
func (o *output) next() (n uint64, repeat bool) {
	o.seen++
	return o.seen, o.seen <= o.latest && !slices.Contains(o.not, o.seen)
}

// markSent notes that an emission was sent.
func (o *output) markSent(n uint64) {
	if n <= o.latest {
		o.not = slices.DeleteFunc(o.not, func(other uint64) bool { return other == n })
		return
	}
	for o.latest++; o.latest < n; o.latest++ {
		o.not = append(o.not, o.latest)
	}
}
