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

// reportLease is how long a node is asked to report. The lease outlasts the pause of a scraper that
// comes once a minute, even if it comes late.
const reportLease = 90 * time.Second

// reportOverdue is the age of a report after which its node counts as stopped or hung: several reports
// are missing.
const reportOverdue = time.Second

// Bounds of a report.
const (
	maxReportBytes   = 4 << 20
	maxReportEntries = 1 << 16
	maxWanted        = 256
)

// reports holds the last report of one node about its direct deliveries.
type reports struct {
	mu         lockorder.Mutex[lockorder.Reports]
	leaseBegan time.Time // start of the lease
	leaseEnds  time.Time // end of the lease; zero: the node was never asked
	pieces     []byte    // of the next report
	last       *hostnode.Report
	lastAt     time.Time // when the last report came
}

// A reported is the last report of a node, as a reader gets it.
type reported struct {
	hostnode.Report
	late   time.Duration // to be added to the ages in the report
	silent time.Duration // time since the node was asked, if no report has come; else 0
}

// read returns the last report. If ask is true, the caller must queue [wire.Report] for the lease.
func (r *reports) read(now time.Time, lease time.Duration) (last reported, ask bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.After(r.leaseEnds) { // the node reports no longer: its last report does not hold
		r.leaseBegan, r.last = now, nil
	}
	if r.leaseEnds.Sub(now) < lease/2 {
		r.leaseEnds, ask = now.Add(lease), true
	}
	if r.last == nil {
		return reported{silent: max(now.Sub(r.leaseBegan), 1)}, ask
	}
	last.Report = *r.last
	// Each wait with an age had begun before the report was made. In a stopped process it goes on, so
	// its age grows while reports are overdue. While reports come, the next one may say that the wait
	// has ended: then the ages stay those of the report, so that no wait looks longer than it was.
	if late := now.Sub(r.lastAt); late >= reportOverdue {
		last.late = late
	}
	return last, ask
}

// add adds a report, or a piece of one.
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
			*w = strings.Clone((*w)[:maxWanted]) // does not keep the whole text alive
		}
	}
	r.last, r.lastAt = &report, time.Now()
	return nil
}

// inFlight returns the client's last report: its direct deliveries, and the emissions that wait at the
// client. The report is empty if the client is not a Go node or has nothing to report.
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

// inFlight is what processes report: direct deliveries, and emissions that wait for space.
type inFlight struct {
	flows      []directReport
	waits      []directReport // streams through the host with an emission that waits at its process
	spaceWaits []spaceWait
	held       []Holding
	holds      map[uint32]int // number of held, by node
	// silent are the processes that were asked and have not reported.
	silent []silentProcess
}

// silentProcess is a process that was asked for its direct deliveries and has not reported.
type silentProcess struct {
	by    *session
	since time.Duration
}

// directReport is the report on one stream to another process.
type directReport struct {
	hostnode.Flow
	stream bus.Stream
	from   *session
	to     *session // nil: the process has departed
}

// spaceWait is an emission in another process that waits for space.
type spaceWait struct {
	hostnode.SpaceWait
	stream bus.Stream // first stream of the emission
	by     *session
}

// inFlight collects the last reports of all processes. It does not wait for reports. The processes go
// on reporting until the lease ends.
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

// explain adds a client's report to all.
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

// stalls returns the waits of at least atLeast.
func (u inFlight) stalls(on bus.Backend, atLeast time.Duration) []bus.Stall {
	return append(u.windowStalls(atLeast), u.spaceStalls(on, atLeast)...)
}

// windowStalls returns the emissions that wait for credit.
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
		process := "a process that has departed"
		if r.to != nil {
			process = r.to.Describe()
		}
		all = append(all, bus.Stall{
			Request: r.stream.Request.ID(), Edge: r.stream.Edge, Waited: r.Waiting, Deliveries: r.InFlight, Bytes: r.InFlightBytes,
			Holder: fmt.Sprintf("%s has not given back %d direct deliveries of the process that waits", process, r.InFlight),
		})
	}
	return all
}

// spaceStalls returns the emissions that wait for space.
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

// silentStalls returns a stall for each process that has not reported: the host waits for it.
func (u inFlight) silentStalls() (all []bus.Stall) {
	for _, s := range u.silent {
		all = append(all, bus.Stall{Process: "the host", Waited: s.since, Holder: s.by.Describe() + " to say what it has under way"})
	}
	return all
}

// directStreams returns the direct streams, with the figures that their producers reported.
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

// add adds the direct deliveries to a status.
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
