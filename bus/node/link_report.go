package node

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// maxHeldReports bounds the held deliveries in a report, which lists the oldest.
const maxHeldReports = 4096

// pushEvery is the time between two reports that differ.
const pushEvery = 250 * time.Millisecond

// reportLease is how long a link reports its work in flight.
type reportLease struct {
	askedAgain chan struct{}  // has capacity 1: the host has asked again, and gets a full report
	ended      sync.WaitGroup // counts the goroutine of link.pushReports

	mu      lockorder.Mutex[lockorder.ReportLease]
	until   time.Time // the end of the lease
	running bool      // link.pushReports runs
}

// extend sets the end of the lease. If pushReports runs already, extend notifies it and reports
// false.
func (p *reportLease) extend(lease time.Duration) (start bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Now().Add(lease)
	if p.running {
		select {
		case p.askedAgain <- struct{}{}:
		default:
		}
		return false
	}
	p.running = true
	return true
}

// remaining is the rest of the lease. If it is not positive, the calling goroutine has to end.
func (p *reportLease) remaining() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(p.until)
	p.running = left > 0
	return left
}

// startReports handles the message Report: the link reports at once, and on until the lease ends.
func (l *link) startReports(lease time.Duration) {
	if l.reports.extend(lease) {
		l.reports.ended.Go(l.pushReports)
	}
}

// pushReports sends a report of the work in flight, as often as it changes, until the lease or the
// link ends. Work in flight has an age, so that its report changes each time: an unchanged report
// is one without flows, held deliveries and waits.
func (l *link) pushReports() {
	var known []byte // the last report that was sent
	for {
		report := l.inFlightReport()
		b, err := json.Marshal(report)
		// A host that does not read its socket gets no more reports: they would fill the backlog.
		if err == nil && !bytes.Equal(b, known) && l.sender.Blocked() == 0 {
			l.sendReport(b)
			known = b
		}
		next, began := pushEvery, chan struct{}(nil)
		left := l.reports.remaining()
		if left <= 0 {
			return
		}
		if report.Empty() && bytes.Equal(b, known) && l.work.empty() {
			next, began = left, l.work.began // the next report changes only when a task or a request begins
		}
		select {
		case <-time.After(next):
		case <-began:
		case <-l.reports.askedAgain:
			known = nil
		case <-l.done:
			return
		}
	}
}

// sendReport sends a report in pieces.
func (l *link) sendReport(b []byte) {
	for len(b) > wire.MaxPiece {
		l.Queue(&wire.Reported{Flags: wire.ReplyMore, Piece: b[:wire.MaxPiece]})
		b = b[wire.MaxPiece:]
	}
	l.Queue(&wire.Reported{Piece: b})
}

func (l *link) inFlightReport() hostnode.Report {
	r := hostnode.Report{Flows: []hostnode.Flow{}, Held: []hostnode.Held{}, SpaceWaits: []hostnode.SpaceWait{}}
	now := time.Now()
	for _, s := range l.streams() {
		r.Flows = append(r.Flows, s.out.flowReport(s.in.req, s.outputs)...)
		for _, room := range s.in.req.Control().SpaceWaits() {
			r.SpaceWaits = append(r.SpaceWaits, hostnode.SpaceWait{Source: s.out.source, Waiting: room.Waited, Wanted: room.Wanted})
		}
	}
	for _, p := range l.peers.list() {
		r.Held = append(r.Held, p.heldReport(now)...)
	}
	slices.SortFunc(r.Flows, func(a, b hostnode.Flow) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Edge, b.Edge)) // a fixed order, so that equal reports have equal bytes
	})
	slices.SortFunc(r.Held, func(a, b hostnode.Held) int { return cmp.Compare(b.Age, a.Age) })
	r.Held = r.Held[:min(len(r.Held), maxHeldReports)]
	return r
}

// flowReport describes the direct streams, and the relayed streams in which an emission waits.
func (rs *routes) flowReport(req *bus.Request, ports []bus.Port) (all []hostnode.Flow) {
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
				all = append(all, hostnode.Flow{Source: rs.source, Edge: uint16(i), InFlight: st.Deliveries, InFlightBytes: st.Bytes, Waiting: st.Waiting})
			}
			continue
		}
		all = append(all, hostnode.Flow{
			Source: rs.source, Edge: uint16(i), Peer: e.to.peer.node, Deliveries: e.to.deliveries, Bytes: e.to.bytes,
			InFlight: st.Deliveries, InFlightBytes: st.Bytes, Queued: st.Queued, Waiting: st.Waiting,
		})
	}
	return all
}

// heldReport describes the deliveries that the peer holds.
func (p *peerLink) heldReport(now time.Time) (all []hostnode.Held) {
	p.account.Each(func(h *accounts.Hold) {
		all = append(all, hostnode.Held{
			Source: h.Source, Edge: uint16(h.Edge), Peer: p.node, Seq: h.Seq, Bytes: h.Bytes, Age: now.Sub(h.At),
		})
	})
	return all
}
