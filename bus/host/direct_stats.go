package host

import (
	"cmp"
	"slices"
)

// LaneStatus describes the deliveries that go directly from one attached process to another. It exists
// while both processes live.
type LaneStatus struct {
	From          uint32 `json:"from"` // node number of the sending process
	To            uint32 `json:"to"`
	Streams       int    `json:"streams"`    // streams that have not ended
	Deliveries    int64  `json:"deliveries"` // so far, as the sender reported
	Bytes         int64  `json:"bytes"`
	InFlight      int    `json:"under_way"` // deliveries that were sent and are not finished
	InFlightBytes int64  `json:"under_way_bytes"`
	Queued        int    `json:"queued"` // deliveries that wait for credit
}

// clampTotal bounds a total that a process reports, far above any real total, so that sums of totals do
// not overflow.
func clampTotal(n uint64) int64 {
	const most = 1 << 53
	return int64(min(n, most))
}

// directTotals counts deliveries over direct paths.
type directTotals struct{ deliveries, bytes int64 }

// lanes returns the lanes between live processes.
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
