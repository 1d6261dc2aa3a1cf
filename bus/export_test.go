package bus

import (
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// HeldBytes is what readers of the store still hold.
func HeldBytes(b *Bus) (n int64) {
	_ = b.writer.Do(func(s *shmstore.Store) {
		for _, h := range s.Holders() {
			n += h.Bytes
		}
	})
	return n
}

// Patient are options of a bus whose payloads go to the heap for want of room alone,
// and not because the machine is slow.
func Patient(o Options) Options {
	o.spillAfter = 10 * time.Second
	return o
}

// Renumber adds to the sequence number of what a task emits next on its first edge.
func Renumber(t *Task, by int) {
	o := t.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.req.flow(o.edges[0]).seq += uint64(by)
}

// Overdue has a request's deadline be over, of which its timer does not know. Nothing
// may have been sent yet.
func Overdue(r *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer.Stop()
	r.deadline = time.Now()
}

// Await waits for what other goroutines bring about, in tests of this package: the others have
// testbus.Await.
func Await(t *testing.T, happened func() bool) {
	t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !happened() {
		select {
		case <-limit.C:
			t.Fatal("waited in vain")
		case <-time.After(time.Millisecond):
		}
	}
}

// Waiting is how many requests wait for a slot of a stage.
func Waiting(b *Bus, stage string) int {
	b.admission.mu.Lock()
	defer b.admission.mu.Unlock()
	return len(b.graph.byName[stage].waits)
}
