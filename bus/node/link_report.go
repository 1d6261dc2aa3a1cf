package node

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/terms"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

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
		l.Queue(&wire.Reported{Token: token, Flags: wire.ReplyMore, Piece: b[:wire.MaxPiece]})
		b = b[wire.MaxPiece:]
	}
	l.Queue(&wire.Reported{Token: token, Piece: b})
}

func (l *link) underWay() terms.Report {
	r := terms.Report{Flows: []terms.Flow{}, Held: []terms.Held{}, Rooms: []terms.Room{}}
	now := time.Now()
	for _, s := range l.streams() {
		r.Flows = append(r.Flows, s.out.report(s.in.req, s.outputs)...)
		for _, room := range s.in.req.Control().Rooms() {
			r.Rooms = append(r.Rooms, terms.Room{Source: s.out.source, Waiting: room.Waited, Wanted: room.Wanted})
		}
	}
	for _, p := range l.peers.list() {
		r.Held = append(r.Held, p.report(now)...)
	}
	slices.SortFunc(r.Held, func(a, b terms.Held) int { return cmp.Compare(b.Age, a.Age) })
	r.Held = r.Held[:min(len(r.Held), maxHeldReports)]
	return r
}

// report describes the streams that go to other nodes, and those through the host in which an emission waits.
func (rs *routes) report(req *bus.Request, ports []bus.Port) (all []terms.Flow) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for i := range rs.edges {
		e := &rs.edges[i]
		if e.ended {
			continue
		}
		st := req.Control().Stream(ports[i])
		if e.to == nil {
			if st.Waiting > 0 {
				all = append(all, terms.Flow{Source: rs.source, Edge: uint16(i), UnderWay: st.Deliveries, UnderBytes: st.Bytes, Waiting: st.Waiting})
			}
			continue
		}
		all = append(all, terms.Flow{
			Source: rs.source, Edge: uint16(i), Peer: e.to.pair.node, Deliveries: e.to.deliveries, Bytes: e.to.bytes,
			UnderWay: st.Deliveries, UnderBytes: st.Bytes, Queued: st.Queued, Waiting: st.Waiting,
		})
	}
	return all
}

// report describes what the peer has.
func (p *pair) report(now time.Time) (all []terms.Held) {
	p.account.Each(func(h *ledger.Hold) {
		all = append(all, terms.Held{
			Source: h.Source, Edge: uint16(h.Edge), Peer: p.node, Seq: h.Seq, Bytes: h.Bytes, Age: now.Sub(h.At),
		})
	})
	return all
}
