package host

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/ledger"
)

// warnKept says that the views that the client keeps fill memory.
func (s *session) warnKept() {
	all := s.account.Tally(ledger.Kept)
	s.srv.log.Warn("a process keeps views of so many payloads that they fill the memory that payloads come in: each one more takes memory of its own. "+
		"Let it copy what it keeps for long (in Python .copy()), or let go of its views; omnibus leases shows how many there are",
		slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Int("payloads", all.Payloads), slog.Int64("bytes", all.Bytes))
}

// keptStats are the figures of payloads that a client keeps.
func keptStats(t ledger.Tally) KeptStats {
	if t.Payloads == 0 {
		return KeptStats{}
	}
	return KeptStats{Payloads: t.Payloads, Bytes: t.Bytes, Oldest: time.Since(t.Oldest)}
}

// holding adds payloads to h.
func (h Holding) holding(t ledger.Tally, what string) Holding {
	h.Together, h.Payloads, h.Bytes, h.Age = what, t.Payloads, int(t.Bytes), time.Since(t.Oldest)
	return h
}

// aloneCount counts memory that was made for one payload of a client's each. What lies
// in the exchange is listed there.
type aloneCount struct{ payloads, bytes atomic.Int64 }

// count counts the segment of a payload that only the client has so far, until it is freed.
func (a *aloneCount) count(p *ledger.Payload) {
	bytes := p.Segment().Mem().Size()
	a.payloads.Add(1)
	a.bytes.Add(bytes)
	p.Before(func() {
		a.payloads.Add(-1)
		a.bytes.Add(-bytes)
	})
}
