package bus

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// nodeReport is what a node has under way that its host does not see.
type nodeReport struct {
	Flows []flowReport `json:"flows"`
	Held  []heldReport `json:"held"`
	Rooms []roomReport `json:"rooms"`
}

// flowReport is a stream that goes to another node.
type flowReport struct {
	Source     uint32        `json:"source"`
	Edge       uint16        `json:"edge"`
	Peer       uint32        `json:"peer"`
	Deliveries uint64        `json:"deliveries"` // that went there
	Bytes      uint64        `json:"bytes"`
	UnderWay   int           `json:"under_way"`
	UnderBytes int64         `json:"under_way_bytes"`
	Queued     int           `json:"queued"`
	Waiting    time.Duration `json:"waiting_ns"` // of whoever emits
}

// heldReport is a delivery that another node has.
type heldReport struct {
	Source uint32        `json:"source"`
	Edge   uint16        `json:"edge"`
	Peer   uint32        `json:"peer"`
	Seq    uint64        `json:"seq"`
	Bytes  int           `json:"bytes"`
	Age    time.Duration `json:"age_ns"`
}

// roomReport is an emission that waits for room.
type roomReport struct {
	Source  uint32        `json:"source"`
	Waiting time.Duration `json:"waiting_ns"`
	Wanted  string        `json:"wanted"` // where, for people
}

// maxHeldReports bounds the deliveries of a report: the oldest count.
const maxHeldReports = 4096

// report answers what the host asks, on a goroutine of its own: it looks at
// all that is under way.
func (l *link) report(token uint32) {
	b, err := json.Marshal(l.underWay())
	if err != nil { // numbers and nothing else
		return
	}
	for len(b) > wire.MaxPiece {
		l.queue(&wire.Reported{Token: token, Flags: wire.ReplyMore, Piece: b[:wire.MaxPiece]})
		b = b[wire.MaxPiece:]
	}
	l.queue(&wire.Reported{Token: token, Piece: b})
}

func (l *link) underWay() nodeReport {
	r := nodeReport{Flows: []flowReport{}, Held: []heldReport{}, Rooms: []roomReport{}}
	now := time.Now()
	for _, s := range l.streams() {
		r.Flows = append(r.Flows, s.out.report(s.in.req, s.outputs)...)
		for _, room := range s.in.req.rooms() {
			r.Rooms = append(r.Rooms, roomReport{s.out.source, room.waited, room.wanted})
		}
	}
	for _, p := range l.peers.list() {
		r.Held = append(r.Held, p.report(now)...)
	}
	slices.SortFunc(r.Held, func(a, b heldReport) int { return cmp.Compare(b.Age, a.Age) })
	r.Held = r.Held[:min(len(r.Held), maxHeldReports)]
	return r
}

// report describes the streams that go to other nodes.
func (rs *routes) report(req *Request, ports []port) (all []flowReport) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := range rs.edges {
		e := &rs.edges[i]
		if e.to == nil || e.ended {
			continue
		}
		st := req.stream(ports[i])
		all = append(all, flowReport{
			Source: rs.source, Edge: uint16(i), Peer: e.to.pair.node, Deliveries: e.to.deliveries, Bytes: e.to.bytes,
			UnderWay: st.deliveries, UnderBytes: st.bytes, Queued: st.queued, Waiting: st.waiting,
		})
	}
	return all
}

// report describes what the peer has.
func (p *pair) report(now time.Time) (all []heldReport) {
	p.account.Each(func(h *ledger.Hold) {
		all = append(all, heldReport{
			Source: h.Source, Edge: uint16(h.Edge), Peer: p.node, Seq: h.Seq, Bytes: h.Bytes, Age: now.Sub(h.At),
		})
	})
	return all
}
