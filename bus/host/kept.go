package host

import (
	"fmt"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/limits"
)

// warnKept logs that the views that the client keeps fill memory.
func (s *session) warnKept() {
	all := s.account.Tally(accounts.Kept)
	s.srv.log.Warn("a process keeps views of so many payloads that they fill the memory that payloads come in: each one more takes memory of its own. "+
		"Let it copy what it keeps for long (in Python .copy()), or let go of its views; omnibus leases shows how many there are",
		slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Int("payloads", all.Payloads), slog.Int64("bytes", all.Bytes))
}

// keptShare: one in keptShare of the descriptors that the host may open is for segments in which
// processes keep views.
const keptShare = 2

// freeFiles is how many such segments a process may keep regardless of other processes: its next input
// arrives before it releases the last one.
const freeFiles = 4

// mayKeepFiles returns an error if the client may get no further payload in a segment of its own: the
// client keeps views in such segments, and all processes together keep as many segments as the host has
// descriptors for. Requests that need another segment fail for this client, before the host has no
// descriptor left for payloads of other processes. It may be called under the lock of a stage, and logs
// nothing.
func (s *session) mayKeepFiles() error {
	files := s.account.Files()
	if files <= freeFiles {
		return nil
	}
	all, most := s.srv.files.Load(), limits.Files()
	if all < int64(most/keptShare) {
		return nil
	}
	return fmt.Errorf("%s keeps views of payloads in %d segments of their own, and the host, process %d, has a descriptor open for each: "+
		"of the %d that it may have open, %d are for such segments. Let the stage copy what it keeps for long (in Python .copy()), or let go of its views, "+
		"or %s, for the host", s.Describe(), files, os.Getpid(), most, all, limits.FilesAdvice)
}

// warnFiles logs, once, that the client gets no further payload in a segment of its own.
func (s *session) warnFiles() {
	if err := s.mayKeepFiles(); err != nil && !s.filesLogged.Swap(true) {
		s.srv.log.Warn("a process is given no large payloads until it lets go of views",
			slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Any("error", err))
	}
}

// keptStats returns the figures of payloads that a client keeps.
func keptStats(t accounts.Tally) KeptStats {
	if t.Payloads == 0 {
		return KeptStats{}
	}
	return KeptStats{Payloads: t.Payloads, Bytes: t.Bytes, Oldest: time.Since(t.Oldest)}
}

// holding returns h with the figures of a group of payloads.
func (h Holding) holding(t accounts.Tally, what string) Holding {
	h.Together, h.Payloads, h.Bytes, h.Age = what, t.Payloads, int(t.Bytes), time.Since(t.Oldest)
	return h
}

// aloneCount counts the segments that hold one payload of a client each. Payloads in the exchange are
// not counted here.
type aloneCount struct{ payloads, bytes atomic.Int64 }

// count counts the segment of a payload until it is freed. So far only the client has the payload.
func (a *aloneCount) count(p *accounts.Payload) {
	bytes := p.Segment().Mem().Size()
	a.payloads.Add(1)
	a.bytes.Add(bytes)
	p.BeforeFree(func() {
		a.payloads.Add(-1)
		a.bytes.Add(-bytes)
	})
}
