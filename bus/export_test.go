package bus

import (
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// HeldBytes are the bytes that readers of the store hold.
func HeldBytes(b *Bus) (n int64) {
	_ = b.writer.Do(func(s *shmstore.Store) {
		for _, h := range s.Holders() {
			n += h.Bytes
		}
	})
	return n
}

// Patient are options of a bus whose payloads go to the heap only if the store has no space,
// and not because the machine is slow.
func Patient(o Options) Options {
	o.spillAfter = 10 * time.Second
	return o
}

// Renumber adds to the sequence of a task's next emission on its first edge.
func Renumber(t *Task, by int) {
	o := t.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.req.flow(o.edges[0]).seq += uint64(by)
}

// Overdue sets the deadline of a request to now, and stops its timer. No input may have been
// sent yet.
func Overdue(r *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer.Stop()
	r.deadline = time.Now()
}

// Await waits until happened reports true, in tests of package bus; those of package bus_test use
// testbus.Await.
func Await(t *testing.T, happened func() bool) {
	t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for !happened() {
		select {
		case <-limit.C:
			t.Fatal("waited for 20 s")
		case <-time.After(time.Millisecond):
		}
	}
}

// Waiting is the number of requests that wait for a slot of a stage.
func Waiting(b *Bus, stage string) int {
	b.admission.mu.Lock()
	defer b.admission.mu.Unlock()
	return len(b.graph.byName[stage].waits)
}
