package pool

import (
	"crypto/rand"
	"fmt"
	"slices"

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

// Fail says to all readers of a piece that its contents will never be there,
// unless they are by now. Whoever sees that it is ready sees the fault.
func (p Piece) Fail() {
	if !p.Ready.Reached(p.Generation) {
		p.Fault.Host.Store(p.Generation)
		p.Ready.Host.Store(p.Generation)
	}
}

// slotState says who has a slot.
type slotState uint8

const (
	slotFree slotState = iota
	slotUsed
	// slotExposed is used, and whoever holds the piece has asked what its words are: a
	// stream may write to it from here on.
	slotExposed
	// slotLate is freed, but its word is not there yet: a stream may still write
	// to the piece, and to the word. Readers that died leave such.
	slotLate
)

// slots are the pieces of a device: numbers, generations and words. It is guarded
// by whoever has it.
type slots struct {
	id          [16]byte
	dev         cudaipc.Device
	segment     *shmstore.Segment
	words       cudaipc.HostMemory
	generations []uint32
	state       []slotState
	free        []uint32 // the last one is used next
	late        []uint32
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
		dev:         dev,
		segment:     segment,
		words:       words,
		generations: make([]uint32, n),
		state:       make([]slotState, n),
		free:        make([]uint32, n),
	}
	rand.Read(s.id[:]) // never fails
	for i := range s.free {
		s.free[i] = uint32(n - 1 - i)
	}
	return s, nil
}

// allocate gives out a slot, with a new generation.
func (s *slots) allocate() (number uint32, ok bool) {
	if len(s.free) == 0 {
		return 0, false
	}
	number = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.state[number] = slotUsed
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

// release takes a slot back. It reports false if a stream may still write to the
// piece: the slot is then late.
func (s *slots) release(number uint32) bool {
	if s.state[number] == slotExposed && !s.isWritten(number) {
		s.state[number] = slotLate
		s.late = append(s.late, number)
		return false
	}
	s.state[number] = slotFree
	s.free = append(s.free, number)
	return true
}

// isWritten reports whether no stream writes to the piece any more: those of a
// device that has failed do not.
func (s *slots) isWritten(number uint32) bool {
	p := s.piece(number)
	return p.Ready.Reached(p.Generation) || s.dev.Err() != nil
}

// reclaimLate gives back the late ones that are settled by now, and has then called
// for each.
func (s *slots) reclaimLate(then func(number uint32)) {
	s.late = slices.DeleteFunc(s.late, func(number uint32) bool {
		if !s.isWritten(number) {
			return false
		}
		s.state[number] = slotFree
		s.free = append(s.free, number)
		then(number)
		return true
	})
}

// used is the number of those that somebody holds.
func (s *slots) used() int { return len(s.state) - len(s.free) - len(s.late) }

// isUsed reports whether a number is that of a piece in use.
func (s *slots) isUsed(number uint32) bool {
	return int(number) < len(s.state) && s.state[number].inUse()
}

func (s slotState) inUse() bool { return s == slotUsed || s == slotExposed }

func (s *slots) mustBeUsed(op string, number uint32) {
	if !s.isUsed(number) {
		panic(fmt.Sprintf("pool: %s of piece %d, which is not in use", op, number))
	}
}

// expose names a piece for whoever holds it, and who may have it filled then.
func (s *slots) expose(number uint32) Piece {
	s.state[number] = slotExposed
	return s.piece(number)
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

func (s *slots) close() error {
	err := s.words.Close()
	if err == nil || s.dev.Err() != nil {
		s.segment.Close()
	}
	return err // of a device that may still have the words: they stay
}

// errInUse refuses to close what objects hold pieces of, or streams write to.
func (s *slots) errInUse() error {
	return fmt.Errorf("%w: %d pieces are in use, and streams write to %d that were freed", shmstore.ErrBusy, s.used(), len(s.late))
}
