package bus

import (
	"sync/atomic"
	"time"
)

// kept is the payload of a delivery that the client has finished, and still
// reads.
type kept struct {
	payload *payload
	told    *told
	lent    bool // the client passes it on
	bytes   int
	at      time.Time // when the client got it
}

// keep, with mu held, keeps the payload of a delivery that the client reads on.
func (s *session) keep(h *held) *kept {
	return &kept{payload: h.d.hold(), told: h.told, lent: h.lent, bytes: len(h.d.Bytes()), at: h.at}
}

// views, with mu held, adds up what the client keeps.
func (s *session) views() (all tally) {
	for _, k := range s.kept {
		all.add(k.bytes, k.at)
	}
	return all
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

// count counts the segment of a payload that nobody else has yet, until it is freed.
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
