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

// warnKept says that the views that the client keeps fill memory.
func (s *session) warnKept() {
	all := s.account.Tally(accounts.Kept)
	s.srv.log.Warn("a process keeps views of so many payloads that they fill the memory that payloads come in: each one more takes memory of its own. "+
		"Let it copy what it keeps for long (in Python .copy()), or let go of its views; omnibus leases shows how many there are",
		slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Int("payloads", all.Payloads), slog.Int64("bytes", all.Bytes))
}

// keptShare is the part of the descriptors that the host may open, for segments that processes keep views in.
const keptShare = 2

// fewFiles are so many of them that a process may keep however many others keep: what it handles next is there
// before it lets go of the last.
const freeFiles = 4

// mayKeepFiles reports why the client is given no payload more that lies in a segment of its own: it keeps views in
// such segments, and all processes together keep as many as the host has descriptors for. Requests that need one more
// fail for the client, before the host has no descriptor left for what other processes send. It may be called under
// the lock of a stage, and logs nothing.
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

// warnFiles says, once, that the client is given no payload more that lies in a segment of its own.
func (s *session) warnFiles() {
	if err := s.mayKeepFiles(); err != nil && !s.filesLogged.Swap(true) {
		s.srv.log.Warn("a process is given no large payloads until it lets go of views",
			slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Any("error", err))
	}
}

// keptStats are the figures of payloads that a client keeps.
func keptStats(t accounts.Tally) KeptStats {
	if t.Payloads == 0 {
		return KeptStats{}
	}
	return KeptStats{Payloads: t.Payloads, Bytes: t.Bytes, Oldest: time.Since(t.Oldest)}
}

// holding adds payloads to h.
func (h Holding) holding(t accounts.Tally, what string) Holding {
	h.Together, h.Payloads, h.Bytes, h.Age = what, t.Payloads, int(t.Bytes), time.Since(t.Oldest)
	return h
}

// aloneCount counts memory that was made for one payload of a client's each. What lies
// in the exchange is listed there.
type aloneCount struct{ payloads, bytes atomic.Int64 }

// count counts the segment of a payload that only the client has so far, until it is freed.
func (a *aloneCount) count(p *accounts.Payload) {
	bytes := p.Segment().Mem().Size()
	a.payloads.Add(1)
	a.bytes.Add(bytes)
	p.Before(func() {
		a.payloads.Add(-1)
		a.bytes.Add(-bytes)
	})
}
