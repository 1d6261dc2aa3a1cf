package bus

import (
	"time"

	"github.com/omnibus-runtime/omnibus/messages"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Patience is how long a test waits for what never comes when a promise is broken.
const Patience = 20 * time.Second

// Await waits for what other goroutines and processes bring about.
func Await(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, happened func() bool,
) {
	t.Helper()
	limit := time.NewTimer(Patience)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited %v in vain", Patience)
		}
	}
}

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

// NeverSpilling are options of a bus whose payloads wait for room for as long as a test lasts.
func NeverSpilling(o Options) Options {
	o.spillAfter = time.Hour
	return o
}

// Renumber adds to the sequence number of what a task emits next on its first edge.
func Renumber(t *Task, by int) {
	o := t.out
	o.mu.Lock()
	defer o.mu.Unlock()
	o.req.flow(o.edges[0]).seq += uint64(by)
}

// NeverAlone has what can wait for the next packet to a process wait for one.
func NeverAlone(o Options) Options {
	o.laterWait = time.Hour
	return o
}

// CutOff ends a node's connection as if its host had died.
func CutOff(n *Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.link != nil {
		_ = n.link.conn.Close()
	}
}

// ToldToDrain reports whether the host has told a node that it is going to stop.
func ToldToDrain(n *Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.link.drained:
		return true
	default:
		return false
	}
}

// LastSource is the last number of a source that a client was given.
func LastSource(s *Server) uint32 { return s.sources.Load() }

// ExchangeStalls are those of processes that wait for the exchange, however short.
func ExchangeStalls(s *Server) []Stall { return s.exchangeStalls(0) }

// SetDirectoryRoom bounds the names in the directory.
func SetDirectoryRoom(b *Bus, names int) { b.directory.Bound(names) }

// ErrCanceled reports a wait that the caller's context ended.
var ErrCanceled = errCanceled

// Published is how many names are in the directory.
func Published(b *Bus) int { return b.directory.Len() }

// PublishedBy is how many names a node publishes, or is about to.
func PublishedBy(n *Node) int {
	n.directory.mu.Lock()
	defer n.directory.mu.Unlock()
	return len(n.directory.names)
}

// OpenAt counts the questions of a node's that are open at its host, and its requests and
// tasks.
func OpenAt(n *Node) (questions, sources int) {
	n.mu.Lock()
	l := n.link
	n.mu.Unlock()
	tasks, all := l.begun.list()
	l.asked.mu.Lock()
	defer l.asked.mu.Unlock()
	return len(l.asked.open), len(all) + len(tasks)
}

// Overdue has a request's deadline be over, of which its timer does not know. Nothing
// may have been sent yet.
func Overdue(r *Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timer.Stop()
	r.deadline = time.Now().UnixNano()
}

// RequestIDOf names the nth request that a node has submitted to its host.
func RequestIDOf(n *Node, nth uint32) messages.RequestID { return requestID(n.link.welcome.Node, nth) }
