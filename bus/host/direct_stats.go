package host

import (
	"cmp"
	"slices"
)

// LaneStatus is what goes from one attached process to another past the host. Both
// must be alive: the figures go with them.
type LaneStatus struct {
	From          uint32 `json:"from"` // Node of the process that sends
	To            uint32 `json:"to"`
	Streams       int    `json:"streams"`    // that are not over
	Deliveries    int64  `json:"deliveries"` // so far, as the sender says
	Bytes         int64  `json:"bytes"`
	InFlight      int    `json:"under_way"` // deliveries that were sent and are not finished
	InFlightBytes int64  `json:"under_way_bytes"`
	Queued        int    `json:"queued"` // deliveries that wait for credit
}

// clampTotal is what a process says it has sent, up to more than anything sends: sums of
// that stay far from what 64 bits hold.
func clampTotal(n uint64) int64 {
	const most = 1 << 53
	return int64(min(n, most))
}

// directTotals is how much went past the host.
type directTotals struct{ deliveries, bytes int64 }

// lanes lists who sends to whom past the host.
func (u inFlight) lanes(live []*session) []LaneStatus {
	type pair struct{ from, to uint32 }
	all := make(map[pair]*LaneStatus)
	alive := make(map[uint32]bool, len(live))
	for _, s := range live {
		alive[s.node] = true
	}
	for _, s := range live {
		for to, sum := range s.direct.snapshot() {
			if alive[to] {
				all[pair{s.node, to}] = &LaneStatus{From: s.node, To: to, Deliveries: sum.deliveries, Bytes: sum.bytes}
			}
		}
	}
	for _, r := range u.flows {
		if r.to == nil {
			continue
		}
		if l := all[pair{r.from.node, r.to.node}]; l != nil {
			l.Streams++
			l.InFlight += r.InFlight
			l.InFlightBytes += r.InFlightBytes
			l.Queued += r.Queued
		}
	}
	list := []LaneStatus{}
	for _, l := range all {
		list = append(list, *l)
	}
	slices.SortFunc(list, func(a, b LaneStatus) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return list
}
