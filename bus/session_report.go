package bus

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// checkAlive ends a session that has work and does not move for the given time.
func (s *session) checkAlive(limit time.Duration) {
	stopped := s.proc.Stopped()
	blocked := s.sender.Blocked()
	s.mu.Lock()
	busy := len(s.held) > 0 || len(s.expects) > 0 || blocked > 0
	if !busy || (!stopped && blocked == 0) {
		s.stuckSince = time.Time{}
		s.mu.Unlock()
		return
	}
	if s.stuckSince.IsZero() {
		s.stuckSince = time.Now()
	}
	stuck := !s.stuck && time.Since(s.stuckSince) >= limit
	s.stuck = s.stuck || stuck
	s.mu.Unlock()
	if !stuck {
		return
	}
	reason := fmt.Errorf("%s made no progress for %v", s.describe(), limit)
	s.srv.log.Warn("a process is stuck: it gets no more work", "pid", s.proc.PID(), "reason", reason)
	if f := s.srv.opts.OnStuck; f != nil {
		f(s.proc.PID(), reason)
	}
	s.fail(reason)
}

func (s *session) stats() ProcessStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ProcessStats{
		Node: s.node, PID: s.proc.PID(), Name: s.name, Held: len(s.held), Grants: len(s.grants),
		Age: time.Since(s.since), Stopped: s.proc.Stopped(),
	}
	for _, rep := range s.replicas {
		st.Stages = append(st.Stages, fmt.Sprintf("%s/%d", rep.remote.stage.spec.Name, rep.number))
	}
	for _, src := range s.sources {
		if src.req != nil {
			st.Requests++
		}
		st.Direct += src.streamsDirect() + len(s.expects[src.id])
	}
	if s.arena != nil {
		a := s.arena.rooms.Stats()
		st.Arena = ArenaStats{Bytes: a.Bytes, Used: a.UsedBytes, Rooms: a.Rooms}
	}
	return st
}

// streamsDirect counts the streams of a source that go past the host.
func (src *source) streamsDirect() (n int) {
	out := src.emitter.out
	for _, e := range out.edges {
		if df := out.req.flow(e).direct.Load(); df != nil && df.producer == src {
			n++
		}
	}
	return n
}

func (s *session) holdings() []Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Holding
	for _, h := range s.held {
		all = append(all, Holding{
			PID: s.proc.PID(), Name: s.name, Stage: h.d.flow.edge.spec.To, Request: uint64(h.d.flow.req.id),
			Edge: h.d.flow.edge.name, Seq: h.d.Seq, Bytes: len(h.d.Bytes()), Age: time.Since(h.at),
		})
	}
	return all
}

func (s *session) check() []shmstore.Violation {
	s.mu.Lock()
	arena := s.arena
	s.mu.Unlock()
	if arena == nil {
		return nil
	}
	return arena.rooms.Check()
}
