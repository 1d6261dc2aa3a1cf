package node

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// board is the shared memory in which a link shows its running handlers to the host: an entry for
// each served stage.
type board struct {
	once   sync.Once
	err    error
	memory *shmstore.Segment
}

// shareScoreboard creates the memory and sends it to the host, once.
func (l *link) shareScoreboard() error {
	b := &l.board
	b.once.Do(func() {
		if b.memory, b.err = shmstore.NewSegment("omnibus-scoreboard", scoreboard.Bytes); b.err == nil {
			b.err = l.send(&wire.Scoreboard{}, b.memory.FD())
		}
	})
	return b.err
}

// writer is for the handlers of a stage; nil: the stage has an actor, or no entry is left.
func (b *board) writer(spec *bus.StageSpec, number uint32) *scoreboard.Writer {
	if spec.Props != nil || number >= scoreboard.Entries {
		return nil
	}
	return scoreboard.WriterOf(&scoreboard.EntriesIn(b.memory.Bytes())[number], number, b.memory)
}

// close releases the memory. Handlers that still run write to memory that no process reads.
func (b *board) close() {
	b.once.Do(func() { b.err = bus.ErrHostGone })
	if b.memory != nil {
		b.memory.Close()
	}
}
