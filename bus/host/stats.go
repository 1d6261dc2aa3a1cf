package host

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// checkAlive ends the session if the client has work and has made no progress for the limit.
func (s *session) checkAlive(limit time.Duration) {
	stopped := s.proc.Stopped()
	blocked := s.sender.Blocked()
	used, _ := s.proc.ProcessorTime()
	if !s.stall.stuckNow(!s.hasWork() || !stopped && blocked == 0, used, limit) {
		return
	}
	reason := fmt.Errorf("%s: %w for %v", s.Describe(), errStuck, limit)
	s.srv.log.Warn("a process is stuck: it gets no more work", "pid", s.proc.PID(), "reason", reason)
	if f := s.srv.opts.OnStuck; f != nil {
		f(s.proc.PID(), reason)
	}
	s.fail(reason)
}

func (s *session) stats() ProcessStats {
	held, got := s.account.Tally(accounts.Sent), s.account.Tally(accounts.Fetched)
	st := ProcessStats{
		Node: s.node, PID: s.proc.PID(), Name: s.name, Stages: []string{}, Held: held.Payloads,
		Placed: s.exchange.placedCount(), Fetched: got.Payloads,
		Age: time.Since(s.since), Stopped: s.proc.Stopped(),
	}
	for _, rep := range s.replicas.list() {
		st.Stages = append(st.Stages, fmt.Sprintf("%s/%d", rep.Stage, rep.Number))
	}
	for _, src := range s.sources.list() {
		if src.task == nil && src.request() != nil {
			st.Requests++
		}
		_, streams := s.direct.expected(src.id)
		st.Direct += src.directStreams() + streams
	}
	st.Arena.Bytes, st.Arena.Used, st.Arena.Payloads = s.memory.bytes.Load(), s.memory.used.Load(), int(s.memory.payloads.Load())
	st.Arena.Alone, st.Arena.AloneBytes = int(s.alone.payloads.Load()), s.alone.bytes.Load()
	st.Kept, st.Left = keptStats(s.account.Tally(accounts.Kept)), keptStats(s.account.Tally(accounts.HungUp))
	return st
}

// directStreams counts the streams of a source that go directly.
func (src *source) directStreams() (n int) {
	req := src.request()
	if req == nil {
		return 0
	}
	for _, p := range src.ports {
		if df := directFlowOf(req.Control().Stream(p)); df != nil && df.producer == src {
			n++
		}
	}
	return n
}

func (s *session) holdings() []Holding {
	var all []Holding
	keyed := Holding{PID: s.proc.PID(), Name: s.name}
	s.account.Each(func(h *accounts.Hold) {
		if h, sent := h.Delivery.(*sentDelivery); sent { // the other holds are listed as groups
			st := h.d.Control().Stream()
			all = append(all, Holding{
				PID: s.proc.PID(), Name: s.name, Stage: st.To, Request: st.Request.ID(),
				Edge: st.Edge, Seq: h.d.Seq, Bytes: h.hold.Bytes, Age: time.Since(h.hold.At),
			})
		}
	})
	if views := s.account.Tally(accounts.Kept); views.Payloads > 0 {
		all = append(all, keyed.holding(views, "kept"))
	}
	if left := s.account.Tally(accounts.HungUp); left.Payloads > 0 {
		all = append(all, keyed.holding(left, "left"))
	}
	if n := int(s.alone.payloads.Load()); n > 0 {
		alone := keyed
		alone.Together, alone.Payloads, alone.Bytes = "alone", n, int(s.alone.bytes.Load())
		all = append(all, alone)
	}
	return append(all, keyed.values(exchange.Values(&s.account), "placed")...)
}

// check checks the client's account.
func (s *session) check() (all []shmstore.Violation) {
	for _, err := range s.account.Check() {
		all = append(all, shmstore.Violation{Invariant: "payloads of a client", Detail: fmt.Sprintf("%s, %v", s.Describe(), err)})
	}
	return all
}

// exchangeStalls returns the questions about the exchange that have waited for at least atLeast. A
// value that they wait for may never be placed.
func (s *Server) exchangeStalls(atLeast time.Duration) (all []bus.Stall) {
	for _, sess := range s.live() {
		all = append(all, sess.exchangeStalls(atLeast)...)
	}
	return all
}

func (s *session) exchangeStalls(atLeast time.Duration) (all []bus.Stall) {
	for _, w := range s.exchange.allWaits() {
		if waited := time.Since(w.since); waited >= atLeast {
			all = append(all, bus.Stall{Process: fmt.Sprintf("process %d", s.proc.PID()), Edge: "exchange", Waited: waited, Holder: w.what})
		}
	}
	return all
}

// values returns a holding for each value, with the process fields of h. Values that were not fetched
// have the state placed.
func (h Holding) values(all []exchange.Value, placed string) (list []Holding) {
	for _, v := range all {
		h.Edge, h.Key, h.Exchange, h.Bytes, h.Age = v.Edge.From+"->"+v.Edge.To, v.Key, placed, v.Bytes, v.Age
		if v.Got {
			h.Exchange = "fetched"
		}
		list = append(list, h)
	}
	return list
}
