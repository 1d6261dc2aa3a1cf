package bus

import "slices"

// output numbers emissions from 1 on, so that those of a repeated handling can
// be told from those that went out before.
type output struct {
	seen   uint64   // by the present handling
	latest uint64   // that went out
	not    []uint64 // those before it that did not: they wait, or failed
}

// next numbers an emission, and reports whether it went out before.
func (o *output) next() (n uint64, repeat bool) {
	o.seen++
	return o.seen, o.seen <= o.latest && !slices.Contains(o.not, o.seen)
}

// markSent notes that an emission went out.
func (o *output) markSent(n uint64) {
	if n <= o.latest {
		o.not = slices.DeleteFunc(o.not, func(other uint64) bool { return other == n })
		return
	}
	for o.latest++; o.latest < n; o.latest++ {
		o.not = append(o.not, o.latest)
	}
}
