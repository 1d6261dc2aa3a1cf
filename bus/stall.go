package bus

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Stall is something that has waited for long, and who holds what it waits
// for.
type Stall struct {
	Request messages.RequestID
	Edge    string        // where the producer waits
	Waited  time.Duration // so far
	// Holder says who holds what is waited for: the requests in the consumer's
	// slots, or the consumer with the deliveries it has not finished.
	Holder     string
	Deliveries int   // under way on the edge
	Bytes      int64 // of their payloads, as charged to the byte window
	// Process is who waits for the exchange, which no request does. Edge and
	// Request say nothing then.
	Process string `json:",omitempty"`
}

// String gives one line for a log.
func (s Stall) String() string {
	if s.Process != "" {
		return fmt.Sprintf("%s has waited %v for %s", s.Process, s.Waited.Round(time.Millisecond), s.Holder)
	}
	return fmt.Sprintf("request %v has waited %v on edge %s: %s (%d deliveries, %d bytes under way)",
		s.Request, s.Waited.Round(time.Millisecond), s.Edge, s.Holder, s.Deliveries, s.Bytes)
}

// Stalls lists what has waited for at least that long.
func (b *Bus) Stalls(atLeast time.Duration) []Stall {
	var all []Stall
	now := time.Now()
	for _, r := range b.requests() {
		for i := range r.flows {
			f := &r.flows[i]
			since := f.waitingSince()
			if since == 0 {
				continue
			}
			if waited := now.Sub(time.Unix(0, since)); waited >= atLeast {
				all = append(all, f.stall(waited))
			}
		}
		for _, o := range r.outlets() {
			if waited := o.waitedForRoom(now); waited > 0 && waited >= atLeast {
				all = append(all, o.stall(waited))
			}
		}
	}
	return all
}

// outlets are where the request's payloads come from.
func (r *Request) outlets() []*outlet {
	all := []*outlet{&r.inputs}
	for i := range r.tasks {
		all = append(all, &r.tasks[i].outlet)
	}
	return all
}

// stall reports a producer that waits for room in the store.
func (o *outlet) stall(waited time.Duration) Stall {
	s := Stall{Request: o.req.id, Edge: o.edges[0].name, Waited: waited}
	// When the bus is closed meanwhile, nobody holds anything.
	_ = o.req.bus.writer.Do(func(store *shmstore.Store) { s.Holder = roomHolders(store) })
	return s
}

func roomHolders(store *shmstore.Store) string {
	st := store.Stats()
	var by []string
	for _, h := range store.Holders() {
		by = append(by, h.String())
	}
	return fmt.Sprintf("the store has no room: %d of %d bytes are free, at most %d in one piece; %d reservations are open; held: %s",
		st.FreeBytes, st.ArenaBytes, st.LargestFree, st.Reserved, strings.Join(by, ", "))
}

// waitingSince is when the producer began to wait, or when the oldest queued
// delivery was held back; 0 when nothing waits.
func (f *flow) waitingSince() int64 {
	if since := f.since.Load(); since != 0 {
		return since
	}
	return f.queuedSince.Load()
}

func (f *flow) stall(waited time.Duration) Stall {
	u := f.used.Load()
	return Stall{
		Request: f.req.id, Edge: f.edge.name, Waited: waited, Holder: f.holder(),
		Deliveries: int(u >> countShift), Bytes: int64(u & bytesMask),
	}
}

// holder says who the producer waits for.
func (f *flow) holder() string {
	switch {
	case f.consumer == nil:
		return "the caller has not finished the results it was given, or does not receive"
	case !f.open():
		return f.consumer.stage.slotHolders(f.req)
	}
	t := f.consumer
	if r := t.stage.remote; r != nil {
		return fmt.Sprintf("stage %q keeps %d deliveries of this request: %s", t.stage.spec.Name, t.held.Load(), r.describe(t))
	}
	if n := t.held.Load(); n > 0 {
		return fmt.Sprintf("stage %q keeps %d deliveries of this request", t.stage.spec.Name, n)
	}
	return fmt.Sprintf("stage %q has not finished what it was sent", t.stage.spec.Name)
}

// slotHolders names the requests that hold a stage's slots, or the stage at
// which r, which takes its slots in order, still waits.
func (st *stage) slotHolders(r *Request) string {
	r.mu.Lock()
	next := r.nextSlot
	r.mu.Unlock()
	if next < len(r.tasks) {
		st = r.tasks[next].stage
	}
	var ids []string
	for _, other := range r.bus.requests() {
		if other.tasks[st.index].slot.Load() != nil {
			ids = append(ids, other.id.String())
		}
	}
	return fmt.Sprintf("all %d slots of stage %q are taken, by requests %s", st.spec.Replicas*st.spec.MaxInflight, st.spec.Name, strings.Join(ids, ", "))
}

// watchStalls reports stalls until the bus closes. Each is reported when it
// has lasted for StallTimeout, and again as often as that.
func (b *Bus) watchStalls() {
	defer close(b.watchDone)
	if b.opts.StallTimeout < 0 {
		return
	}
	tick := time.NewTicker(b.opts.StallTimeout)
	defer tick.Stop()
	for {
		select {
		case <-b.closing:
			return
		case <-tick.C:
			b.reportStalls(b.Stalls(b.opts.StallTimeout))
		}
	}
}

func (b *Bus) reportStalls(stalls []Stall) {
	if len(stalls) == 0 {
		return
	}
	if b.opts.OnStall != nil {
		b.opts.OnStall(stalls)
		return
	}
	for _, s := range stalls {
		b.opts.Logger.Warn("stalled", slog.String("bus", b.opts.Name), slog.String("stall", s.String()))
	}
}

// describe says what a request that is not gone still has.
func (r *Request) describe() string {
	var has []string
	for i := range r.tasks {
		t := &r.tasks[i]
		if t.slot.Load() == nil {
			continue
		}
		if n := t.held.Load(); n > 0 && t.stage.remote != nil {
			has = append(has, fmt.Sprintf("stage %q keeps %d deliveries: %s", t.stage.spec.Name, n, t.stage.remote.describe(t)))
		} else if n > 0 {
			has = append(has, fmt.Sprintf("stage %q keeps %d deliveries", t.stage.spec.Name, n))
		} else {
			has = append(has, fmt.Sprintf("stage %q is at work", t.stage.spec.Name))
		}
	}
	if n := r.inHand.Load(); n > 0 {
		has = append(has, fmt.Sprintf("the caller has %d payloads that it has neither sent nor aborted", n))
	}
	if len(has) == 0 {
		has = append(has, "the caller has results that it has not received or finished")
	}
	return fmt.Sprintf("request %v (%v): %s", r.id, r.Outcome(), strings.Join(has, ", "))
}
