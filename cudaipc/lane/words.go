package lane

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// A lease on device memory has two words in memory that only this process writes, on a cache line
// of its own:
//
//	offset  size  word    written by               waited for by
//	     0     4  mirror  the watcher              the streams that read
//	     4     4  ack     the stream behind them   the watcher
//
// The mirror has the value of the producer's ready word, but the watcher also raises it when the
// producer is dead: so no stream waits for a dead process. Both count up with every lease on the
// line, with wraparound.
const (
	lineBytes = 64
	mirrorAt  = 0
	ackAt     = 4
)

// line holds the words of one lease.
type line struct {
	mirror, ack cudaipc.Word
	seq         uint32 // number of the present lease
}

// words allocates lines. The device's lock guards it.
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

// giveLine frees a line. Its streams wait for none of its words any more, and none writes to it.
func (w *words) giveLine(l *line) { w.free = append(w.free, l) }

func (w *words) close() error {
	if err := w.host.Close(); err != nil {
		return err // the device may still use it, so the memory stays mapped
	}
	return freeMemory(w.mem)
}
