package pool

import (
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The words segment: 64 bytes for each slot, a cache line of its own. Only the producer's process
// writes it, by its streams or by its CPU.
//
//	offset  size  field
//	     0     4  ready: the generation of the piece whose contents are there
//	     4     4  fault: the generation that failed, written before ready is
//	     8    56  zero
const (
	// SlotBytes is the size of a slot in the words segment: the slot of piece n begins at
	// n*SlotBytes.
	SlotBytes = 64
	// ReadyOffset and FaultOffset are the offsets of the words in a slot.
	ReadyOffset = 0
	FaultOffset = 4
)

// Piece is the part of a device that one object holds. Between processes its number and generation
// name it.
type Piece struct {
	Number     uint32 // number of its slot
	Generation uint32 // +1 at each use of the slot, with wraparound, and never 0
	// Ready reaches the generation when the contents are complete: the producer's stream writes it
	// after its copies. Fault is the generation if the contents never will be complete.
	Ready, Fault cudaipc.Word
}

// Fail tells all readers of a piece that its contents never will be complete, unless they already
// are. A reader that sees the new Ready sees the fault.
func (p Piece) Fail() {
	if !p.Ready.Reached(p.Generation) {
		p.Fault.Host.Store(p.Generation)
		p.Ready.Host.Store(p.Generation)
	}
}

// slotState is the state of a slot.
type slotState uint8

const (
	slotFree slotState = iota
	slotUsed
	// slotExposed is used, and its holder has read its words: a stream may write to the piece from
	// here on.
	slotExposed
	// slotLate is freed, but its ready word was not written: a stream may still write to the piece,
	// and to the word. Readers that died leave such slots.
	slotLate
)

// slots manages the pieces of a device: numbers, generations and words. The lock of the pool, or of
// the exports, guards it.
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

// allocate takes a free slot, with a new generation.
func (s *slots) allocate() (number uint32, ok bool) {
	if len(s.free) == 0 {
		return 0, false
	}
	number = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	s.state[number] = slotUsed
	s.generations[number] = next(s.generations[number])
	// Old values of the words would count as reached after a wraparound.
	p := s.piece(number)
	p.Ready.Host.Store(p.Generation - 1)
	p.Fault.Host.Store(0)
	return number, true
}

// next returns the following generation, which is never 0.
func next(generation uint32) uint32 { return max(generation+1, 1) }

// release frees a slot. It returns false if a stream may still write to the piece: the slot is then
// late.
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

// isWritten reports whether no stream writes to the piece any more: its ready word was written, or
// the device has failed.
func (s *slots) isWritten(number uint32) bool {
	p := s.piece(number)
	return p.Ready.Reached(p.Generation) || s.dev.Err() != nil
}

// reclaimLate frees the late slots that are written by now, and calls then for each.
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

// used returns the number of slots that are held.
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

// expose returns the piece, to which its holder's stream may write from then on.
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
	return err // the device may still use the words, so they stay mapped
}

// errInUse is the error of Close while objects hold pieces, or streams write to them.
func (s *slots) errInUse() error {
	return fmt.Errorf("%w: %d pieces are in use, and streams write to %d that were freed", shmstore.ErrBusy, s.used(), len(s.late))
}
