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
	// Entries is how many it has.
	Entries = Bytes / EntryBytes
)

// Entry is one handler that runs, or that waits for the bus. The layout is part of the protocol.
type Entry struct {
	since   atomic.Int64  // when it began to run, or to wait, in nanoseconds; 0: there is none
	request atomic.Uint64 // whose delivery it handles
	stage   atomic.Uint32 // by its number at the host
	edge    atomic.Uint32 // that it waits for: its index among the stage's outputs, and one more; 0: it runs
	_       uint64
}

// Activity is what an entry says.
type Activity struct {
	Request uint64
	Stage   uint32
	// Edge is the index of the output that the handler waits for; -1: it runs.
	Edge int
	For  time.Duration // so far
	// Since tells this handler, or this wait, from all others of its entry.
	Since int64
}

// EntriesIn gives the entries in memory of [Bytes] that begins at a multiple of 8.
func EntriesIn(memory []byte) []Entry { return entriesIn(memory) }

// Writer writes an entry, for one goroutine at a time.
type Writer struct {
	*Entry
	memory any // in which the entry lies: it is referred to for as long as the writer is
}

// New makes an entry for readers in this process.
func New() *Writer { return &Writer{Entry: new(Entry)} }

// WriterOf is for an entry in some memory, for the handlers of a stage.
func WriterOf(e *Entry, stage uint32, memory any) *Writer {
	e.stage.Store(stage)
	return &Writer{e, memory}
}

// Begin says that a handler runs for a request, and has run for some time.
func (e *Writer) Begin(request uint64, ran time.Duration) {
	e.request.Store(request)
	e.since.Store(now() - int64(ran))
}

// End says that the handler has returned.
func (e *Writer) End() { e.since.Store(0) }

// Pause says that the handler does not run for a while. It returns how long the handler has run; below 0: none did.
func (e *Writer) Pause() (ran time.Duration) {
	since := e.since.Swap(0)
	if since == 0 {
		return -1
	}
	return max(time.Duration(now()-since), 0)
}

// Read gives what the entry says; false: no handler runs or waits.
func (e *Entry) Read() (a Activity, found bool) {
	since := e.since.Load()
	a = Activity{Request: e.request.Load(), Stage: e.stage.Load(), Edge: int(e.edge.Load()) - 1, Since: since}
	if since == 0 || e.since.Load() != since { // a handler that ends as it is looked at has not hung
		return Activity{}, false
	}
	a.For = max(time.Duration(now()-since), 0)
	return a, true
}
