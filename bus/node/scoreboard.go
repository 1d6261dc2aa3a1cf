package node

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// board is the memory in which a link tells the host which handlers run: an entry for each stage that it serves.
type board struct {
	once   sync.Once
	err    error
	memory *shmstore.Segment
}

// shareScoreboard gives the memory to the host, once.
func (l *link) shareScoreboard() error {
	b := &l.board
	b.once.Do(func() {
		if b.memory, b.err = shmstore.NewSegment("omnibus-scoreboard", scoreboard.Bytes); b.err == nil {
			b.err = l.send(&wire.Scoreboard{}, b.memory.FD())
		}
	})
	return b.err
}

// writer is for the handlers of a stage; nil: the host does not see those of so many stages.
func (b *board) writer(spec *bus.StageSpec, number uint32) *scoreboard.Writer {
	if spec.Props != nil || number >= scoreboard.Entries {
		return nil
	}
	return scoreboard.WriterOf(&scoreboard.EntriesIn(b.memory.Bytes())[number], number, b.memory)
}

// close lets go of the memory: handlers that still run write where no process reads.
func (b *board) close() {
	b.once.Do(func() { b.err = bus.ErrHostGone })
	if b.memory != nil {
		b.memory.Close()
	}
}
