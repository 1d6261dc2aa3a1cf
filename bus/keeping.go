package bus

import (
	"log/slog"
	"sync/atomic"
	"time"
)

// keeping counts the bytes in one memory whose deliveries are finished, and which are
// still needed: processes keep views of them.
type keeping struct{ bytes atomic.Int64 }

// crowded reports whether they take as much of the memory as windows leave free. From
// there on a payload that has credit need not find room, however long it waits: the room
// comes back when a process lets go of a view, and that may be never.
func (k *keeping) crowded(freeBytes int64) bool { return k.bytes.Load() >= freeBytes }

// fewKept are so many that a process may keep them for a moment: what it handles
// next is there before it lets go of the last.
const fewKept = 4

// fills reports whether the client keeps views of half of a memory that
// payloads come in again and again.
func (t *told) fills() bool {
	return t != nil && t.lasting && t.keeps > fewKept && t.keepsBytes*2 >= t.seg.mem.Size()
}

// warnKept says that the views that the client keeps fill memory.
func (s *session) warnKept() {
	all := s.account.tally(whyKept)
	s.srv.log.Warn("a process keeps views of so many payloads that they fill the memory that payloads come in: each one more takes memory of its own. "+
		"Let it copy what it keeps for long (in Python .copy()), or let go of its views; omnibus leases shows how many there are",
		slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Int("payloads", all.payloads), slog.Int64("bytes", all.bytes))
}

// tally adds payloads up.
type tally struct {
	payloads int
	bytes    int64
	oldest   time.Time
}

func (t *tally) add(bytes int, at time.Time) {
	if t.payloads == 0 || at.Before(t.oldest) {
		t.oldest = at
	}
	t.payloads++
	t.bytes += int64(bytes)
}

func (t tally) stats() KeptStats {
	if t.payloads == 0 {
		return KeptStats{}
	}
	return KeptStats{Payloads: t.payloads, Bytes: t.bytes, Oldest: time.Since(t.oldest)}
}

// holding adds it to h.
func (t tally) holding(h Holding, what string) Holding {
	h.Together, h.Payloads, h.Bytes, h.Age = what, t.payloads, int(t.bytes), time.Since(t.oldest)
	return h
}

// aloneCount counts memory that was made for one payload of a client's each. What lies
// in the exchange is listed there.
type aloneCount struct{ payloads, bytes atomic.Int64 }

// count counts the segment of a payload that only the client has so far, until it is freed.
func (a *aloneCount) count(p *foreign) {
	bytes, free := p.seg.mem.Size(), p.free
	a.payloads.Add(1)
	a.bytes.Add(bytes)
	p.free = func() {
		a.payloads.Add(-1)
		a.bytes.Add(-bytes)
		free()
	}
}
