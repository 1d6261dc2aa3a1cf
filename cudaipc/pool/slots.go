package pool

import (
	"crypto/rand"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The words segment: 64 bytes for each slot, a cache line of its own. All of it is
// written by the producer's process alone, be that by its streams or by its CPU.
//
//	offset  size  field
//	     0     4  ready: the generation of the piece whose contents are there
//	     4     4  fault: the generation that failed, written before ready is
//	     8    56  zero
const (
	// SlotBytes is the size of a slot in the words segment: that of the piece
	// with number n begins at n times as much.
	SlotBytes = 64
	// ReadyOffset and FaultOffset are where the words of a slot are in it.
	ReadyOffset = 0
	FaultOffset = 4
)

// Piece is what of a device one object holds. Between processes its number and
// generation name it.
type Piece struct {
	Number     uint32 // of its slot
	Generation uint32 // +1 each time the slot is used, in a circle, and never 0
	// Ready reaches the generation when the contents are there: the producer's
	// stream writes it behind its copies. Fault is the generation if they never
	// will be.
	Ready, Fault cudaipc.Word
}

// slots are the pieces of a device: numbers, generations and words. It is guarded
// by whoever has it.
type slots struct {
	id          [16]byte
	segment     *shmstore.Segment
	words       cudaipc.HostMemory
	generations []uint32
	inUse       []bool
	free        []uint32 // the last one is used next
}

// newSlots makes the words segment and registers it with the device.
func newSlots(dev cudaipc.Device, n int) (*slots, error) {
	if caps := dev.Caps(); !caps.Words {
		return nil, fmt.Errorf("%w: streams cannot write words: %s", cudaipc.ErrUnsupported, caps.Why["Words"])
	}
	segment, err := shmstore.NewSegment("gpu words", int64(n)*SlotBytes)
	if err != nil {
		return nil, err
	}
	words, err := dev.RegisterHost(segment.Bytes(), false)
	if err != nil {
		segment.Close()
		return nil, fmt.Errorf("register the words with the device: %w", err)
	}
	s := &slots{
		segment:     segment,
		words:       words,
		generations: make([]uint32, n),
		inUse:       make([]bool, n),
		free:        make([]uint32, n),
	}
	rand.Read(s.id[:]) // never fails
	for i := range s.free {
		s.free[i] = uint32(n - 1 - i)
	}
	return s, nil
}

// take gives out a slot, with a new generation.
func (s *slots) take() (number uint32, ok bool) {
	if len(s.free) == 0 {
		return 0, false
	}
	number = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.inUse[number] = true
	s.generations[number] = next(s.generations[number])
	// What the words said of the last generations is over, and may be so long ago
	// that it would be taken for news.
	p := s.piece(number)
	p.Ready.Host.Store(p.Generation - 1)
	p.Fault.Host.Store(0)
	return number, true
}

// next is the generation behind another. Words compare in a circle, so that none
// is missed at the end of the numbers.
func next(generation uint32) uint32 { return max(generation+1, 1) }

func (s *slots) giveBack(number uint32) {
	s.inUse[number] = false
	s.free = append(s.free, number)
}

func (s *slots) used() int { return len(s.inUse) - len(s.free) }

// isUsed reports whether a number is that of a piece in use.
func (s *slots) isUsed(number uint32) bool { return int(number) < len(s.inUse) && s.inUse[number] }

func (s *slots) mustBeUsed(op string, number uint32) {
	if !s.isUsed(number) {
		panic(fmt.Sprintf("pool: %s of piece %d, which is not in use", op, number))
	}
}

func (s *slots) piece(number uint32) Piece {
	at := int64(number) * SlotBytes
	return Piece{
		Number:     number,
		Generation: s.generations[number],
		Ready:      s.words.Word(at + ReadyOffset),
		Fault:      s.words.Word(at + FaultOffset),
	}
}

// fail marks a piece as one whose contents will never be there. Whoever sees that
// it is ready sees the fault.
func (s *slots) fail(number uint32) {
	p := s.piece(number)
	p.Fault.Host.Store(p.Generation)
	p.Ready.Host.Store(p.Generation)
}

func (s *slots) close() error {
	err := s.words.Close()
	s.segment.Close()
	return err
}

// errInUse refuses to close what objects hold pieces of.
func (s *slots) errInUse() error {
	return fmt.Errorf("%w: %d pieces are in use", shmstore.ErrBusy, s.used())
}
