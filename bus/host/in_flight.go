package host

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// reportLease is for how long a node is asked to report. A scraper that comes once a minute, and is late, finds
// the lease going on.
const reportLease = 90 * time.Second

// reportOverdue is the age at which a report has missed several successors: its node is stopped, or hangs.
const reportOverdue = time.Second

// A report is bounded: its bytes, its entries, and the words in it.
const (
	maxReportBytes   = 4 << 20
	maxReportEntries = 1 << 16
	maxWanted        = 256
)

// reports are those of one node: what it has under way past the host, as it said last.
type reports struct {
	mu         lockorder.Mutex[lockorder.Reports]
	leaseBegan time.Time // the beginning of the lease
	leaseEnds  time.Time // the end of the lease; zero: the node was never asked
	pieces     []byte    // of the next report
	last       *hostnode.Report
	lastAt     time.Time // when the last report did
}

// A reported is the last report of a node, as a reader finds it.
type reported struct {
	hostnode.Report
	late   time.Duration // what the ages of the report lack
	silent time.Duration // since the node was asked, if no report has come; else 0
}

// read returns the last report. If ask is true, the caller has to queue [wire.Report] for the lease.
func (r *reports) read(now time.Time, lease time.Duration) (last reported, ask bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.After(r.leaseEnds) { // the node says nothing any more: its last report does not hold
		r.leaseBegan, r.last = now, nil
	}
	if r.leaseEnds.Sub(now) < lease/2 {
		r.leaseEnds, ask = now.Add(lease), true
	}
	if r.last == nil {
		return reported{silent: max(now.Sub(r.leaseBegan), 1)}, ask
	}
	last.Report = *r.last
	// All that a report gives an age had begun before the report was made. It goes on in a process that is stopped, so
	// its age grows while reports are missing. While they come, the next one may say that it has ended: the ages are
	// those of the report then, so that no wait looks longer than it was.
	if late := now.Sub(r.lastAt); late >= reportOverdue {
		last.late = late
	}
	return last, ask
}

// add takes in a report, or a piece of one.
func (r *reports) add(m *wire.Reported) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaseEnds.IsZero() {
		return fmt.Errorf("%w: a report: none was asked for", wire.ErrProtocol)
	}
	if len(r.pieces)+len(m.Piece) > maxReportBytes {
		return fmt.Errorf("%w: a report of more than %d bytes", wire.ErrProtocol, maxReportBytes)
	}
	r.pieces = append(r.pieces, m.Piece...)
	if m.Flags&wire.ReplyMore != 0 {
		return nil
	}
	var report hostnode.Report
	err := json.Unmarshal(r.pieces, &report)
	r.pieces = nil
	switch {
	case err != nil:
		return fmt.Errorf("%w: a report: %w", wire.ErrProtocol, err)
	case len(report.Flows)+len(report.SpaceWaits)+len(report.Held) > maxReportEntries:
		return fmt.Errorf("%w: a report of more than %d entries", wire.ErrProtocol, maxReportEntries)
	}
	for i := range report.SpaceWaits {
		if w := &report.SpaceWaits[i].Wanted; len(*w) > maxWanted {
			*w = strings.Clone((*w)[:maxWanted]) // without the memory of the rest
		}
	}
	r.last, r.lastAt = &report, time.Now()
	return nil
}

// inFlight is what goes past the host, and what waits at the client, as its last report says. It is empty if the
// client is no Go node, or has nothing to report.
func (s *session) inFlight(lease time.Duration) reported {
	if !s.direct.mayReport(len(s.sources.list()) > 0) {
		return reported{}
	}
	r, ask := s.reports.read(time.Now(), lease)
	if ask {
		s.queue(&wire.Report{Millis: uint32(min(lease.Milliseconds(), math.MaxUint32))})
	}
	return r
}

// inFlight is what goes past the host, or waits for room, as the processes that send
// it say.
type inFlight struct {
	flows      []directReport
	waits      []directReport // streams through the host in which an emission waits at its process
	spaceWaits []spaceWait
	held       []Holding
	holds      map[uint32]int // how many of them each node has
	// silent are the processes that have been asked and have not reported.
	silent []silentProcess
}

// silentProcess is a process that has been asked what it has under way, and has not reported.
type silentProcess struct {
	by    *session
	since time.Duration
}

// directReport is one stream that goes from one process to another.
type directReport struct {
	hostnode.Flow
	stream bus.Stream
	from   *session
	to     *session // nil: it is gone
}

// spaceWait is an emission in another process that waits for room.
type spaceWait struct {
	hostnode.SpaceWait
	stream bus.Stream // the first that it is for
	by     *session
}

// inFlight is what all processes have reported. It waits for none. Processes that have been asked go on reporting for
// the time of the lease.
func (s *Server) inFlight(lease time.Duration) inFlight {
	sessions := s.live()
	byNode := make(map[uint32]*session, len(sessions))
	for _, sess := range sessions {
		byNode[sess.node] = sess
	}
	all := inFlight{holds: make(map[uint32]int)}
	for _, sess := range sessions {
		r := sess.inFlight(lease)
		if r.silent > 0 {
			all.silent = append(all.silent, silentProcess{sess, r.silent})
		}
		sess.explain(r, byNode, &all)
	}
	return all
}

// explain adds what a client says about its sources.
func (s *session) explain(r reported, byNode map[uint32]*session, all *inFlight) {
	s.direct.forgetDeparted(byNode)
	streamOf := func(source uint32, edge uint16) (found bus.Stream, ok bool) {
		src, _ := s.sources.find(source)
		if src == nil || int(edge) >= len(src.ports) {
			return found, false
		}
		req := src.request()
		if req == nil {
			return found, false
		}
		return req.Control().Stream(src.ports[edge]), true
	}
	for _, fr := range r.Flows {
		st, ok := streamOf(fr.Source, fr.Edge)
		if !ok {
			continue
		}
		if fr.Waiting > 0 {
			fr.Waiting += r.late
		}
		if fr.Peer == 0 {
			all.waits = append(all.waits, directReport{fr, st, s, nil})
			continue
		}
		all.flows = append(all.flows, directReport{fr, st, s, byNode[fr.Peer]})
		if df := directFlowOf(st); df != nil && df.producer.sess == s {
			s.direct.update(df, fr.Deliveries, fr.Bytes)
		}
	}
	for _, rr := range r.SpaceWaits {
		if st, ok := streamOf(rr.Source, 0); ok {
			rr.Waiting += r.late
			all.spaceWaits = append(all.spaceWaits, spaceWait{rr, st, s})
		}
	}
	for _, hr := range r.Held {
		h := Holding{Seq: hr.Seq, Bytes: hr.Bytes, Direct: true, Age: hr.Age + r.late}
		if st, ok := streamOf(hr.Source, hr.Edge); ok {
			h.Stage, h.Request, h.Edge = st.To, st.Request.ID(), st.Edge
		}
		all.holds[hr.Peer]++
		if peer := byNode[hr.Peer]; peer != nil {
			h.PID, h.Name = peer.proc.PID(), peer.name
		}
		all.held = append(all.held, h)
	}
}

// stalls are those that have waited for at least that long.
func (u inFlight) stalls(on bus.Backend, atLeast time.Duration) []bus.Stall {
	return append(u.windowStalls(atLeast), u.spaceStalls(on, atLeast)...)
}

// windowStalls are those of emissions that wait for credit.
func (u inFlight) windowStalls(atLeast time.Duration) (all []bus.Stall) {
	for _, r := range u.waits {
		if r.Waiting >= atLeast {
			all = append(all, bus.Stall{
				Request: r.stream.Request.ID(), Edge: r.stream.Edge, Waited: r.Waiting, Deliveries: r.InFlight, Bytes: r.InFlightBytes,
				Holder: r.stream.Consumer(),
			})
		}
	}
	for _, r := range u.flows {
		if r.Waiting == 0 || r.Waiting < atLeast {
			continue
		}
		process := "the process at the other end, which is gone"
		if r.to != nil {
			process = r.to.Describe()
		}
		all = append(all, bus.Stall{
			Request: r.stream.Request.ID(), Edge: r.stream.Edge, Waited: r.Waiting, Deliveries: r.InFlight, Bytes: r.InFlightBytes,
			Holder: fmt.Sprintf("%s has not given back %d deliveries, which it has directly from the process that waits", process, r.InFlight),
		})
	}
	return all
}

// spaceStalls are those of emissions that wait for room.
func (u inFlight) spaceStalls(on bus.Backend, atLeast time.Duration) (all []bus.Stall) {
	holders := ""
	for _, r := range u.spaceWaits {
		if r.Waiting < atLeast {
			continue
		}
		if holders == "" {
			holders = on.DescribeHolders(u.directStreams())
		}
		all = append(all, bus.Stall{
			Request: r.stream.Request.ID(), Edge: r.stream.Edge, Waited: r.Waiting, Deliveries: r.stream.Deliveries, Bytes: r.stream.Bytes,
			Holder: fmt.Sprintf("%s says %q; %s", r.by.Describe(), r.Wanted, holders),
		})
	}
	return all
}

// silentStalls are the processes that have not reported, as the host waits for them.
func (u inFlight) silentStalls() (all []bus.Stall) {
	for _, s := range u.silent {
		all = append(all, bus.Stall{Process: "the host", Waited: s.since, Holder: s.by.Describe() + " to say what it has under way"})
	}
	return all
}

// directStreams are the streams that go past the host, with what those who send say of them.
func (u inFlight) directStreams() []bus.Stream {
	all := make([]bus.Stream, 0, len(u.flows))
	for _, r := range u.flows {
		st := r.stream
		st.Deliveries, st.Bytes = r.InFlight, r.InFlightBytes
		if r.to != nil {
			st.Holder = r.to
		}
		all = append(all, st)
	}
	return all
}

// add has a status show what goes past the host.
func (u inFlight) add(st *Status) {
	byID := make(map[messages.RequestID]*bus.RequestStatus, len(st.Requests))
	for i := range st.Requests {
		byID[st.Requests[i].ID] = &st.Requests[i]
	}
	for i := range st.Processes {
		p := &st.Processes[i]
		p.Held += u.holds[p.Node]
		p.Unreported = slices.ContainsFunc(u.silent, func(s silentProcess) bool { return s.by.node == p.Node })
	}
	for _, r := range u.flows {
		if req := byID[r.stream.Request.ID()]; req != nil && r.InFlight+r.Queued > 0 {
			req.Edges = append(req.Edges, bus.EdgeStatus{Edge: r.stream.Edge, Deliveries: r.InFlight, Bytes: r.InFlightBytes, Queued: r.Queued, Direct: true})
		}
	}
}
