package lane

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// A lease on device memory has two words in memory that this process alone
// writes, on a cache line of its own:
//
//	offset  size  word    written by               waited for by
//	     0     4  mirror  the watcher              the streams that read
//	     4     4  ack     the stream behind them   the watcher
//
// The mirror says what the producer's ready word says, but that the watcher
// also raises it when the producer is dead: so no stream waits for the dead. Both
// count up with every lease on the line, in a circle.
const (
	lineBytes = 64
	mirrorAt  = 0
	ackAt     = 4
)

// line is the words of one lease.
type line struct {
	mirror, ack cudaipc.Word
	seq         uint32 // of the lease that has it now
}

// words hands out lines. It is the lane's, under its lock.
type words struct {
	mem  []byte
	host cudaipc.HostMemory
	all  []line
	free []*line
}

func newWords(dev cudaipc.Device, lines int) (*words, error) {
	mem, err := newMemory(lines * lineBytes)
	if err != nil {
		return nil, fmt.Errorf("words for %d leases: %w", lines, err)
	}
	host, err := dev.RegisterHost(mem, false)
	if err != nil {
		_ = freeMemory(mem)
		return nil, fmt.Errorf("words for %d leases: %w", lines, err)
	}
	w := &words{mem: mem, host: host, all: make([]line, lines)}
	for i := range w.all {
		at := int64(i) * lineBytes
		w.all[i] = line{mirror: host.Word(at + mirrorAt), ack: host.Word(at + ackAt)}
		w.free = append(w.free, &w.all[i])
	}
	return w, nil
}

// takeLine returns a line with a new sequence number, or nil when all are in use.
func (w *words) takeLine() *line {
	if len(w.free) == 0 {
		return nil
	}
	l := w.free[len(w.free)-1]
	w.free = w.free[:len(w.free)-1]
	l.seq++
	return l
}

// giveLine takes a line back. Whatever its streams were to wait for is there, and
// nothing writes it any more.
func (w *words) giveLine(l *line) { w.free = append(w.free, l) }

func (w *words) close() error {
	if err := w.host.Close(); err != nil {
		return err // the device may still have it: the memory stays
	}
	return freeMemory(w.mem)
}
