package shmstore

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// A store is made of segments, each with exactly one writing process. All
// fields are in the byte order of the machine: a segment never leaves it.
//
//	segment    written by         mapped read-only by    size in bytes
//	arena      the owner          every reader           ArenaBytes
//	directory  the owner          every reader           4096 + 64 * slots
//	account    the owner          the reader it is for   4096 +  4 * slots
//	ledger     that same reader   the owner              4096 +  8 * slots
//	large      the owner          readers that ask       the object, in whole pages
//
// The arena is the ring of package ringbuf and nothing else. A large object is
// its bytes and nothing else. The other three start with a page that holds a
// superblock, followed by one entry a slot.
//
// The memory of a peer that keeps no accounts, see [Segment], is written by that
// peer, mapped read-only by all other processes, and has no layout.
//
// Superblock, the first 64 bytes of that page, written once before the segment
// is handed to another process:
//
//	offset  size  field
//	     0     8  magic: "OMNIBUS" and the kind of the segment
//	     8     4  layout version
//	    12     4  slots
//	    16     8  identity of the store
//	    24     8  arena bytes
//	    32     8  largest object in bytes
//	    40     4  reader index (account and ledger; 0 in the directory)
//	    44    20  zero
//
// Directory page, second cache line, on a line of its own because every
// release reads it:
//
//	offset  size  field      writer  access
//	    64     4  wantRoom   owner   atomic; odd while the owner waits for space
//
// Directory line, 64 bytes, one cache line a slot:
//
//	offset  size  field   writer  access
//	     0     8  word    owner   atomic: generation<<2 | state
//	     8     8  offset  owner   relaxed, stable while the word is live; 1<<63: large
//	    16     8  size    owner   relaxed, stable while the word is live
//	    24     4  codec   owner   relaxed, stable while the word is live
//	    28    36  zero
//
// An offset of 1<<63 says that the object is large: its bytes begin at 0 of a
// segment of its own, which is found by the object's generation. No arena is that
// long, so code that takes it for an offset in the arena fails, and reads nothing.
// A large object also has a chunk of the smallest size in the ring, which gives it
// its position in the order of age.
//
// Account entry, 4 bytes a slot: owed, the debts ever charged to this reader
// on this slot. It is stored relaxed before the word turns live, and only by
// the writer afterwards. It lets a reader tell a debt from a pin.
//
// Ledger entry, 8 bytes a slot, two atomics:
//
//	offset  size  field  writer  meaning
//	     0     4  pin    reader  pins now held; the only count that falls
//	     4     4  done   reader  debts ever settled; grows and wraps
//
// Invariant, modulo 2^32, for every reader and slot: done <= taken <= owed,
// where taken (debts ever collected) is private to the reader. The three are
// equal whenever the slot changes hands, so none is ever reset.
const (
	layoutVersion = 3

	ringHeaderBytes = ringbuf.HeaderSize

	pageBytes       = 4096
	superblockBytes = 64
	wantRoomOffset  = 64
	lineBytes       = 64
	entryBytes      = 8
	accountBytes    = 4

	// largeOffset is the offset of an object with a segment of its own.
	largeOffset = 1 << 63
)

// State is the low two bits of a directory word.
type state uint64

const (
	// stateFree with generation 0 is an empty slot; with a generation it is
	// a slot granted to a reservation that no reader may read yet.
	stateFree state = iota
	// stateLive is an object that readers with a debt or a pin may read.
	stateLive
	// stateClosing is an object whose pins the writer is reading.
	stateClosing
	// stateAborted is an aborted reservation; the next scan frees it.
	stateAborted

	stateBits = 2
	stateMask = 1<<stateBits - 1
)

func (s state) String() string {
	return [...]string{"free", "live", "closing", "aborted"}[s&stateMask]
}

// maxGeneration bounds the store-wide counter. At one object a nanosecond it
// lasts for 146 years.
const maxGeneration = 1<<(64-stateBits) - 1

func wordOf(gen uint64, s state) uint64 { return gen<<stateBits | uint64(s) }
func genOf(word uint64) uint64          { return word >> stateBits }
func stateOf(word uint64) state         { return state(word & stateMask) }

// isPresent reports whether a word is that of the committed object of a
// generation: live, or closing while an eviction reads its pins.
func isPresent(word, gen uint64) bool {
	state := stateOf(word)
	return genOf(word) == gen && (state == stateLive || state == stateClosing)
}

// directoryWord is the word of a slot. Only the goroutine that may change the
// slot's state writes it: the writer, or the holder of the reservation.
type directoryWord struct{ bits uint64 }

func (w *directoryWord) load() uint64 { return atomic.LoadUint64(&w.bits) }

func (w *directoryWord) store(word uint64) { atomic.StoreUint64(&w.bits, word) }

// storeRelaxed is for free and reserved, which admit no reader and need no order with
// other stores, and for closing if a fence follows.
func (w *directoryWord) storeRelaxed(word uint64) { relaxedStore64(&w.bits, word) }

func (w *directoryWord) compareAndSwap(old, word uint64) bool {
	return atomic.CompareAndSwapUint64(&w.bits, old, word)
}

// line is one slot of the directory.
type line struct {
	word   directoryWord
	offset uint64
	size   uint64
	codec  uint32
	_      [36]byte
}

// isLarge reports whether the object of a line that is in use has a segment of
// its own.
func (ln *line) isLarge() bool { return atomic.LoadUint64(&ln.offset) == largeOffset }

// entry is one slot of a reader's ledger.
type entry struct {
	pin  atomic.Uint32
	done atomic.Uint32
}

func directoryBytes(slots int) int { return pageBytes + slots*lineBytes }
func ledgerBytes(slots int) int    { return pageBytes + slots*entryBytes }
func columnBytes(slots int) int    { return pageBytes + slots*accountBytes }

// segmentKind is the last byte of a segment's magic.
type segmentKind byte

const (
	kindArena     segmentKind = 'A'
	kindDirectory segmentKind = 'D'
	kindAccount   segmentKind = 'O'
	kindLedger    segmentKind = 'L'
	kindLarge     segmentKind = 'X'
)

func (k segmentKind) String() string {
	switch k {
	case kindArena:
		return "arena"
	case kindDirectory:
		return "directory"
	case kindAccount:
		return "account"
	case kindLedger:
		return "ledger"
	case kindLarge:
		return "large object"
	default:
		return fmt.Sprintf("segment %#x", byte(k))
	}
}

func (k segmentKind) magic() [8]byte { return [8]byte{'O', 'M', 'N', 'I', 'B', 'U', 'S', byte(k)} }

// geometry is the identity and the sizes that all segments of a store agree on.
type geometry struct {
	store     uint64
	arena     uint64
	maxObject uint64
	slots     uint32
}

// check bounds a geometry that came from another process, so that no size
// derived from it can overflow.
func (g geometry) check() error {
	switch {
	case g.store == 0:
		return fmt.Errorf("%w: the store has no identity", ErrProtocol)
	case g.arena < minArenaBytes || g.arena > maxArenaBytes:
		return fmt.Errorf("%w: an arena of %d bytes is not in [%d, %d]", ErrProtocol, g.arena, int64(minArenaBytes), int64(maxArenaBytes))
	case g.slots < 1 || g.slots > maxSlots:
		return fmt.Errorf("%w: %d slots are not in [1, %d]", ErrProtocol, g.slots, maxSlots)
	case g.maxObject < 1 || g.maxObject > maxArenaBytes:
		return fmt.Errorf("%w: objects of up to %d bytes are not in [1, %d]", ErrProtocol, g.maxObject, int64(maxArenaBytes))
	}
	return nil
}

// superblock identifies a segment.
type superblock struct {
	kind   segmentKind
	reader ReaderID
	geometry
}

func (sb superblock) encode() (b [superblockBytes]byte) {
	magic := sb.kind.magic()
	copy(b[:], magic[:])
	binary.NativeEndian.PutUint32(b[8:], layoutVersion)
	binary.NativeEndian.PutUint32(b[12:], sb.slots)
	binary.NativeEndian.PutUint64(b[16:], sb.store)
	binary.NativeEndian.PutUint64(b[24:], sb.arena)
	binary.NativeEndian.PutUint64(b[32:], sb.maxObject)
	binary.NativeEndian.PutUint32(b[40:], uint32(sb.reader))
	return b
}

// verify returns an error unless b starts with exactly this superblock. The expected
// superblock is known before the segment arrives, so there is nothing to parse.
func (sb superblock) verify(b []byte) error {
	want := sb.encode()
	if len(b) < superblockBytes || [superblockBytes]byte(b[:superblockBytes]) != want {
		return fmt.Errorf("%w: the %s segment does not start with the superblock of store %x", ErrProtocol, sb.kind, sb.store)
	}
	return nil
}
