package host

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/terms"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// reportWait is how long a node may take to say what it has under way.
const reportWait = 250 * time.Millisecond

// What a node says is bounded: all that it says at once, and in words.
const (
	maxReportBytes = 4 << 20
	maxWanted      = 256
)

// reporting is a question to a node that is open.
type reporting struct {
	token  uint32
	pieces []byte
	answer chan terms.Report
}

// reports is what a node is asked of what goes past the host.
type reports struct {
	turn lockorder.Right[lockorder.ReportsTurn] // of the goroutine that asks; comes before the locks of the session's parts
	mu   lockorder.Mutex[lockorder.Reports]
	open *reporting // nil: there is no question
	last uint32
}

// ask opens a question.
func (r *reports) ask() *reporting {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	r.open = &reporting{token: r.last, answer: make(chan terms.Report, 1)}
	return r.open
}

// underWay asks the client what goes past the host, and what waits there. It is empty
// if the client does not answer in time, or is no Go node, or has nothing to say.
func (s *session) underWay(ctx context.Context) terms.Report {
	s.reports.turn.Lock() // one question at a time
	defer s.reports.turn.Unlock()
	if !s.past.reports(len(s.sources.list()) > 0) {
		return terms.Report{}
	}
	q := s.reports.ask()
	s.queue(&wire.Report{Token: q.token})
	select {
	case r := <-q.answer:
		return r
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return terms.Report{}
}

// reported takes in an answer, or a piece of one.
func (r *reports) reported(m *wire.Reported) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.open
	if q == nil || q.token != m.Token {
		return nil // nobody waits for it any more
	}
	if len(q.pieces)+len(m.Piece) > maxReportBytes {
		return fmt.Errorf("%w: a report of more than %d bytes", wire.ErrProtocol, maxReportBytes)
	}
	q.pieces = append(q.pieces, m.Piece...)
	if m.Flags&wire.ReplyMore != 0 {
		return nil
	}
	r.open = nil
	var answer terms.Report
	if err := json.Unmarshal(q.pieces, &answer); err != nil {
		return fmt.Errorf("%w: a report: %w", wire.ErrProtocol, err)
	}
	q.answer <- answer
	return nil
}

// underWay is what goes past the host, or waits for room, as the processes that send
// it say.
type underWay struct {
	flows []directReport
	waits []directReport // streams through the host in which an emission waits at its process
	rooms []roomWait
	held  []Holding
	holds map[uint32]int // how many of them each node has
}

// directReport is one stream that goes from one process to another.
type directReport struct {
	terms.Flow
	stream bus.Stream
	from   *session
	to     *session // nil: it is gone
}

// roomWait is an emission in another process that waits for room.
type roomWait struct {
	terms.Room
	stream bus.Stream // the first that it is for
	by     *session
}

// underWay asks all processes at once.
func (s *Server) underWay() underWay {
	ctx, cancel := context.WithTimeout(context.Background(), reportWait)
	defer cancel()
	sessions := s.live()
	byNode := make(map[uint32]*session, len(sessions))
	for _, sess := range sessions {
		byNode[sess.node] = sess
	}
	var mu sync.Mutex
	all := underWay{holds: make(map[uint32]int)}
	var wg sync.WaitGroup
	for _, sess := range sessions {
		wg.Go(func() {
			r := sess.underWay(ctx)
			mu.Lock()
			defer mu.Unlock()
			sess.explain(r, byNode, &all)
		})
	}
	wg.Wait()
	return all
}

// explain adds what a client says about its sources.
func (s *session) explain(r terms.Report, byNode map[uint32]*session, all *underWay) {
	s.past.forgetGone(byNode)
	streamOf := func(source uint32, edge uint16) (found bus.Stream, ok bool) {
		src, _ := s.sources.find(source)
		if src == nil || int(edge) >= len(src.ports) {
			return found, false
		}
		req := src.opens()
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
		if fr.Peer == 0 {
			all.waits = append(all.waits, directReport{fr, st, s, nil})
			continue
		}
		all.flows = append(all.flows, directReport{fr, st, s, byNode[fr.Peer]})
		if df := directFlowOf(st); df != nil && df.producer.sess == s {
			s.past.learn(df, fr.Deliveries, fr.Bytes)
		}
	}
	for _, rr := range r.Rooms {
		if st, ok := streamOf(rr.Source, 0); ok {
			rr.Wanted = rr.Wanted[:min(len(rr.Wanted), maxWanted)]
			all.rooms = append(all.rooms, roomWait{rr, st, s})
		}
	}
	for _, hr := range r.Held {
		h := Holding{Seq: hr.Seq, Bytes: hr.Bytes, Direct: true, Age: hr.Age}
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
func (u underWay) stalls(on bus.Floor, atLeast time.Duration) []bus.Stall {
	return append(u.windowStalls(atLeast), u.roomStalls(on, atLeast)...)
}

// windowStalls are those of emissions that wait for credit.
func (u underWay) windowStalls(atLeast time.Duration) (all []bus.Stall) {
	for _, r := range u.waits {
		if r.Waiting >= atLeast {
			all = append(all, bus.Stall{
				Request: r.stream.Request.ID(), Edge: r.stream.Edge, Waited: r.Waiting, Deliveries: r.UnderWay, Bytes: r.UnderBytes,
				Holder: r.stream.Consumer(),
			})
		}
	}
	for _, r := range u.flows {
		if r.Waiting == 0 || r.Waiting < atLeast {
			continue
		}
		who := "the process at the other end, which is gone"
		if r.to != nil {
			who = r.to.Describe()
		}
		all = append(all, bus.Stall{
			Request: r.stream.Request.ID(), Edge: r.stream.Edge, Waited: r.Waiting, Deliveries: r.UnderWay, Bytes: r.UnderBytes,
			Holder: fmt.Sprintf("%s has not given back %d deliveries, which it has directly from the process that waits", who, r.UnderWay),
		})
	}
	return all
}

// roomStalls are those of emissions that wait for room.
func (u underWay) roomStalls(on bus.Floor, atLeast time.Duration) (all []bus.Stall) {
	holders := ""
	for _, r := range u.rooms {
		if r.Waiting < atLeast {
			continue
		}
		if holders == "" {
			holders = on.Holders(u.past())
		}
		all = append(all, bus.Stall{
			Request: r.stream.Request.ID(), Edge: r.stream.Edge, Waited: r.Waiting, Deliveries: r.stream.Deliveries, Bytes: r.stream.Bytes,
			Holder: fmt.Sprintf("%s says %q; %s", r.by.Describe(), r.Wanted, holders),
		})
	}
	return all
}

// past are the streams that go past the host, with what those who send say of them.
func (u underWay) past() []bus.Stream {
	all := make([]bus.Stream, 0, len(u.flows))
	for _, r := range u.flows {
		st := r.stream
		st.Deliveries, st.Bytes = r.UnderWay, r.UnderBytes
		if r.to != nil {
			st.Holder = r.to
		}
		all = append(all, st)
	}
	return all
}

// add has a status show what goes past the host.
func (u underWay) add(st *Status) {
	byID := make(map[messages.RequestID]*bus.RequestStatus, len(st.Requests))
	for i := range st.Requests {
		byID[st.Requests[i].ID] = &st.Requests[i]
	}
	for i := range st.Processes {
		st.Processes[i].Held += u.holds[st.Processes[i].Node]
	}
	for _, r := range u.flows {
		if req := byID[r.stream.Request.ID()]; req != nil && r.UnderWay+r.Queued > 0 {
			req.Edges = append(req.Edges, bus.EdgeStatus{Edge: r.stream.Edge, Deliveries: r.UnderWay, Bytes: r.UnderBytes, Queued: r.Queued, Direct: true})
		}
	}
}
