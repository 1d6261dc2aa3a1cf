package scoreboard

import (
	"sync/atomic"
	"time"
)

const (
	// EntryBytes is the length of an entry.
	EntryBytes = 32
	// Bytes is the length of a scoreboard that processes share: one page.
	Bytes = 4096
	// Entries is how many entries a scoreboard has.
	Entries = Bytes / EntryBytes
)

// Entry describes one handler that runs, or waits for the bus. The layout is part of the protocol.
type Entry struct {
	since   atomic.Int64  // when it began to run, or to wait, in nanoseconds; 0: there is none
	request atomic.Uint64 // the request of the delivery that it handles
	stage   atomic.Uint32 // by its number at the host
	edge    atomic.Uint32 // that it waits for: one more than its index among the stage's outputs; 0: it runs
	_       uint64
}

// Activity is the content of an entry.
type Activity struct {
	Request uint64
	Stage   uint32
	// Edge is the index of the output that the handler waits for; -1: it runs.
	Edge int
	For  time.Duration // so far
	// Since identifies this handler, or this wait, among all of its entry.
	Since int64
}

// EntriesIn returns the entries in memory of [Bytes], whose address is a multiple of 8.
func EntriesIn(memory []byte) []Entry { return entriesIn(memory) }

// Writer writes an entry, for one goroutine at a time.
type Writer struct {
	*Entry
	memory any // of the entry: kept reachable as long as the writer is
}

// New returns the writer of a new entry, for readers in this process.
func New() *Writer { return &Writer{Entry: new(Entry)} }

// WriterOf returns the writer of an entry in memory, for the handlers of a stage.
func WriterOf(e *Entry, stage uint32, memory any) *Writer {
	e.stage.Store(stage)
	return &Writer{e, memory}
}

// Begin notes that a handler runs for a request, and has run for the time ran.
func (e *Writer) Begin(request uint64, ran time.Duration) {
	e.request.Store(request)
	e.since.Store(now() - int64(ran))
}

// End notes that the handler has returned.
func (e *Writer) End() { e.since.Store(0) }

// Pause notes that the handler is interrupted. It returns how long the handler has run; below 0: none did.
func (e *Writer) Pause() (ran time.Duration) {
	since := e.since.Swap(0)
	if since == 0 {
		return -1
	}
	return max(time.Duration(now()-since), 0)
}

// Read returns the content of the entry; found is false if no handler runs or waits.
func (e *Entry) Read() (a Activity, found bool) {
	since := e.since.Load()
	a = Activity{Request: e.request.Load(), Stage: e.stage.Load(), Edge: int(e.edge.Load()) - 1, Since: since}
	if since == 0 || e.since.Load() != since { // a handler that ends during the read has not hung
		return Activity{}, false
	}
	a.For = max(time.Duration(now()-since), 0)
	return a, true
}
