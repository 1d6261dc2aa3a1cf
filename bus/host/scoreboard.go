package host

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// board is the memory in which a client says which handlers it runs.
type board struct {
	memory    *shmstore.Segment
	entries   []scoreboard.Entry
	lastCheck time.Time                       // used by checkHandlers alone, like running
	running   [scoreboard.Entries]runningTime // by entry
}

// runningTime is how long the host has seen one handler run.
type runningTime struct {
	since int64 // see scoreboard.Activity
	seen  time.Duration
}

// shareScoreboard maps the memory in which the client says which handlers it runs.
func (s *session) shareScoreboard(fd int) error {
	memory, err := shmstore.OpenSegment("scoreboard", fd, scoreboard.Bytes)
	if err != nil {
		return offerError(err)
	}
	b := &board{memory: memory, entries: scoreboard.EntriesIn(memory.Bytes())}
	if !s.board.CompareAndSwap(nil, b) {
		memory.Close()
		return fmt.Errorf("%w: a second scoreboard", wire.ErrProtocol)
	}
	return nil
}

// Running implements bus.ReplicaConn.
func (s *session) Running(rep *bus.Replica) (all []scoreboard.Activity) {
	b := s.board.Load()
	if b == nil {
		return nil
	}
	number := uint32(s.replicas.number(rep))
	for i := range b.entries {
		if a, found := b.entries[i].Read(); found && a.Stage == number {
			a.For = min(a.For, time.Since(s.since)) // the client may write any figure
			all = append(all, a)
		}
	}
	return all
}

// handlerChecks is how often the host checks within the least handle timeout.
const handlerChecks = 8

// watchHandlers ends the sessions whose handlers run for longer than their stages allow.
func (s *Server) watchHandlers(least time.Duration) {
	every := min(max(least/handlerChecks, 5*time.Millisecond), time.Second)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.closing.Done():
			return
		case <-tick.C:
			for _, sess := range s.live() {
				sess.checkHandlers(2 * every)
			}
		}
	}
}

// checkHandlers ends the session if a handler has run for too long. At most a time of most counts
// between two checks, since the host, and the client with it, may have been stopped.
func (s *session) checkHandlers(most time.Duration) {
	b := s.board.Load()
	if b == nil || s.ctx.Err() != nil {
		return
	}
	now := time.Now()
	passed := min(now.Sub(b.lastCheck), most)
	b.lastCheck = now
	for i := range b.entries {
		ran := &b.running[i]
		a, found := b.entries[i].Read()
		switch {
		case !found || a.Edge >= 0:
			*ran = runningTime{}
			continue
		case a.Since != ran.since:
			*ran = runningTime{a.Since, min(a.For, passed)}
		default:
			ran.seen += passed
		}
		rep := s.replicas.find(a.Stage)
		if rep == nil {
			continue
		}
		if limit := rep.HandleLimit(); limit > 0 && ran.seen >= limit {
			s.endHung(rep, a, limit)
			return
		}
	}
}

// endHung ends the session of a client whose handler does not return.
func (s *session) endHung(rep *bus.Replica, a scoreboard.Activity, limit time.Duration) {
	rep.TimedOut()
	reason := fmt.Errorf("%w: stage %q, replica %d, %s: a handler has run for %v for request %v, and may for %v",
		bus.ErrHandleTimeout, rep.Stage, rep.Number, s.Describe(), a.For.Round(time.Millisecond), messages.RequestID(a.Request), limit)
	s.srv.log.Error("a handler does not return: its process gets no more work", slog.String("stage", rep.Stage), slog.Int("replica", rep.Number),
		slog.Int("pid", s.proc.PID()), slog.String("request", messages.RequestID(a.Request).String()), slog.Any("reason", reason))
	if f := s.srv.opts.OnHung; f != nil {
		f(s.proc.PID(), reason)
	}
	s.fail(reason)
}
