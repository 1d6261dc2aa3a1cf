package pool

import (
	"errors"
	"math"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func TestModel(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	rapid.Check(t, func(t *rapid.T) {
		opts := small
		opts.Slots = rapid.IntRange(1, 20).Draw(t, "slots")
		opts.MaxBytes = rapid.Int64Range(1, 3).Draw(t, "arenas") * minArenaBytes
		m := &model{inUse: make(map[uint32]Chunk), late: make(map[uint32]Chunk), last: make(map[uint32]uint32), numbers: make(map[uint32]bool)}
		opts.OnArena = func(number uint32, arena cudaipc.Arena) {
			if number != m.lastEver+1 || arena.Bytes() != minArenaBytes {
				t.Fatalf("arena %d of %d bytes comes after %d", number, arena.Bytes(), m.lastEver)
			}
			m.numbers[number], m.lastEver = true, number
		}
		opts.OnArenaGone = func(number uint32) {
			if !m.numbers[number] {
				t.Fatalf("arena %d is reported gone, and does not exist", number)
			}
			delete(m.numbers, number)
		}
		var err error
		if m.p, err = New(machine, opts); err != nil {
			t.Fatal(err)
		}
		t.Repeat(rapid.StateMachineActions(m))
		if err := m.p.Close(); (err == nil) != (len(m.inUse)+len(m.late) == 0) || err != nil && !errors.Is(err, shmstore.ErrBusy) {
			t.Fatalf("Close with %d pieces in use: %v", len(m.inUse), err)
		}
		for piece := range m.inUse {
			free(m.p, piece)
		}
		for _, c := range m.late {
			c.Ready.Host.Store(c.Generation)
		}
		for range 2 {
			if err := m.p.Close(); err != nil || len(m.numbers) != 0 {
				t.Fatalf("Close: %v, the arenas %v are left", err, m.numbers)
			}
		}
		if _, ok := m.p.Allocate(1); ok || m.p.Grow(1) {
			t.Error("a closed pool allocated a piece")
		}
	})
}

func TestOptionsValidate(t *testing.T) {
	if err := (Options{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if err := (Options{MaxBytes: 1 << 20}).Validate(); err != nil {
		t.Errorf("a bound below the default arena: %v", err)
	}
	for name, opts := range map[string]Options{
		"tiny arena":        {ArenaBytes: minArenaBytes - 1},
		"huge arena":        {ArenaBytes: maxArenaBytes + 1},
		"negative arena":    {ArenaBytes: -1},
		"bound below arena": {ArenaBytes: 1 << 20, MaxBytes: 1<<20 - 1},
		"too many arenas":   {ArenaBytes: 1 << 20, MaxBytes: (maxArenas + 1) << 20},
		"negative slots":    {Slots: -1},
		"too many slots":    {Slots: maxSlots + 1},
	} {
		if err := opts.Validate(); !errors.Is(err, cudaipc.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
		if p, err := New(nil, opts); p != nil || !errors.Is(err, cudaipc.ErrInvalid) {
			t.Errorf("New, %s: %v", name, err)
		}
	}
	if e, err := NewExports(nil, maxSlots+1); e != nil || !errors.Is(err, cudaipc.ErrInvalid) {
		t.Errorf("too many exports: %v", err)
	}
}

// TestGenerationsWrapAround: generations skip 0, and a word of an old generation never counts as
// ready.
func TestGenerationsWrapAround(t *testing.T) {
	opts := small
	opts.Slots = 1
	p := newMachine(t, emul.Options{}).pool(t, opts)
	for _, last := range []uint32{0, math.MaxUint32 - 1, math.MaxUint32, math.MaxInt32} {
		p.slots.generations[0] = last
		for range 3 {
			piece := mustAllocate(t, p, 1)
			c := p.Chunk(piece)
			if want := max(last+1, 1); c.Generation != want || c.Ready.Reached(c.Generation) || c.Fault.Host.Load() == c.Generation {
				t.Errorf("generation %d after %d, ready for %d, failed in %d", c.Generation, last, c.Ready.Host.Load(), c.Fault.Host.Load())
			}
			p.slots.piece(piece).Fail()
			free(p, piece)
			last = c.Generation
		}
	}
}

// TestIdleArenasAreClosed: after a burst the pool shrinks to its first arena, but not at once.
func TestIdleArenasAreClosed(t *testing.T) {
	var gone []uint32
	opts := small
	opts.OnArenaGone = func(number uint32) { gone = append(gone, number) }
	machine := newMachine(t, emul.Options{})
	p := machine.pool(t, opts)
	burst := func() (pieces []uint32) {
		for range 6 {
			piece, ok := p.Allocate(p.MaxBytes())
			if !ok && p.Grow(p.MaxBytes()) {
				piece, ok = p.Allocate(p.MaxBytes())
			}
			if !ok {
				t.Fatal("no room")
			}
			pieces = append(pieces, piece)
		}
		return pieces
	}
	for range 5 { // consecutive bursts use
		for _, piece := range burst() {
			free(p, piece)
		}
	}
	if st := p.Stats(); st.Arenas != 3 || st.GrownTotal != 3 || len(gone) != 0 {
		t.Fatalf("after bursts: %d arenas, %d ever made, gone are %v", st.Arenas, st.GrownTotal, gone)
	}
	if p.Grow(1) {
		t.Error("the pool grew beyond its bound")
	}
	for range idleFrees {
		free(p, mustAllocate(t, p, 1))
	}
	p.closing.Wait()
	slices.Sort(gone)
	if st := p.Stats(); st.Arenas != 1 || st.ShrunkTotal != 2 || st.ArenaBytes != minArenaBytes || !slices.Equal(gone, []uint32{2, 3}) {
		t.Errorf("when idle: %+v, gone are %v", st, gone)
	}
	if n := machine.driver.Usage().Arenas; n != 1 {
		t.Errorf("%d arenas are on the GPU", n)
	}
	pieces := burst()
	if c := p.Chunk(pieces[5]); c.Arena <= 3 {
		t.Errorf("the number %d was used again", c.Arena)
	}
	for _, piece := range pieces {
		free(p, piece)
	}
}

// TestDeviceRefusesArenas: a pool works with the arenas that it has, and does not ask the device at
// every call.
func TestDeviceRefusesArenas(t *testing.T) {
	asked, refuse := 0, false
	machine := newMachine(t, emul.Options{Refuse: func(call string) error {
		if call != "NewArena" {
			return nil
		}
		asked++
		if refuse {
			return cudaipc.ErrOutOfMemory
		}
		return nil
	}})
	p := machine.pool(t, small)
	refuse, asked = true, 0
	first, second := mustAllocate(t, p, p.MaxBytes()), mustAllocate(t, p, p.MaxBytes())
	for range 10 {
		if p.Grow(1) {
			t.Fatal("the pool grew")
		}
	}
	if st := p.Stats(); asked != 1 || st.FailuresTotal != 1 || !errors.Is(st.LastFailure, cudaipc.ErrOutOfMemory) {
		t.Errorf("asked %d times, %d failures, the last is %v", asked, st.FailuresTotal, st.LastFailure)
	}
	refuse = false
	for range idleFrees {
		free(p, first)
		first = mustAllocate(t, p, p.MaxBytes())
	}
	if !p.Grow(1) {
		t.Error("the device was not asked again")
	}
	free(p, first)
	free(p, second)
	refuse = true
	if _, err := New(machine, small); !errors.Is(err, cudaipc.ErrOutOfMemory) {
		t.Errorf("New without memory: %v", err)
	}
}

// TestDeviceWithoutFeature: a pool that cannot be made leaves nothing on the device.
func TestDeviceWithoutFeature(t *testing.T) {
	for _, field := range []string{"Words", "RegisterHost", "Arenas"} {
		t.Run(field, func(t *testing.T) {
			missing := map[string]string{field: "for a test"}
			if field == "Arenas" { // handles would replace descriptors
				missing["Handles"] = "for a test"
			}
			machine := newMachine(t, emul.Options{Missing: missing})
			if _, err := New(machine, small); !errors.Is(err, cudaipc.ErrUnsupported) {
				t.Errorf("New: %v", err)
			}
			exports, err := NewExports(machine, 1)
			if field != "Arenas" {
				if !errors.Is(err, cudaipc.ErrUnsupported) {
					t.Errorf("NewExports: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := exports.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestStreamsWriteWords: other processes see the words that a stream writes after its copies in the
// segment.
func TestStreamsWriteWords(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	p := machine.pool(t, small)
	mustAllocate(t, p, 1)
	piece := mustAllocate(t, p, 1000)
	c := p.Chunk(piece)
	stream, err := machine.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Submit(
		cudaipc.Op{Kind: cudaipc.OpCopy, Dst: c.Ptr, Src: p.Chunk(0).Ptr, Bytes: 1},
		cudaipc.Op{Kind: cudaipc.OpWrite, Word: c.Ready, Value: c.Generation},
	); err != nil {
		t.Fatal(err)
	}
	if err := stream.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	at := int64(piece)*SlotBytes + ReadyOffset
	if words := p.Words().Bytes(); !c.Ready.Reached(c.Generation) || words[at] != 1 || len(words) != 32*SlotBytes {
		t.Errorf("the word of piece %d is %d, the segment says %d", piece, c.Ready.Host.Load(), words[at])
	}
	fd, err := unix.FcntlInt(uintptr(p.Words().FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if words, err := shmstore.OpenSegment("words", fd, p.Words().Size()); err != nil { // checks the seals
		t.Error(err)
	} else {
		words.Close()
	}
	if err := stream.Close(); err != nil {
		t.Error(err)
	}
	free(p, 0)
	free(p, piece)
}

// TestConcurrentHolders: the writer reserves while holders call Chunk, Fail and Stats.
func TestConcurrentHolders(t *testing.T) {
	p := newMachine(t, emul.Options{}).pool(t, small)
	s := newStore(t, shmstore.Heap)
	reserved := make(chan shmstore.Reservation)
	pieces := make(chan uint32)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for r := range reserved {
				piece := <-pieces
				c := p.Chunk(piece)
				p.slots.piece(piece).Fail()
				if st := p.Stats(); st.Pieces == 0 || c.Fault.Host.Load() != c.Generation {
					t.Errorf("generation %d failed in %d; %+v", c.Generation, c.Fault.Host.Load(), st)
				}
				if c.Generation%2 == 0 {
					r.Abort()
				} else {
					mustCommit(t, r)
				}
			}
		})
	}
	for i := range 2000 {
		r, piece, err := s.ReserveOn(p, p.MaxBytes()/8, 100, codec.IDRaw, 0)
		if err != nil {
			t.Fatal(err) // the four goroutines never hold
		}
		reserved <- r
		pieces <- piece
		if i%100 == 0 {
			s.FreeUnused()
			wantClean(t, p.Check())
		}
	}
	close(reserved)
	group.Wait()
	s.FreeUnused()
}

func TestMisusePanics(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	p := machine.pool(t, small)
	exports, err := NewExports(machine, 2)
	if err != nil {
		t.Fatal(err)
	}
	kept := mustAllocate(t, exports, 1<<60)
	exports.Keep(kept, func() {})
	for name, f := range map[string]func(){
		"free of a piece that is free":  func() { free(p, 3) },
		"free of no piece":              func() { free(p, 1000) },
		"chunk of a piece that is free": func() { p.Chunk(3) },
		"export freed twice":            func() { exports.Free(kept + 1) },
		"export kept twice":             func() { exports.Keep(kept, func() {}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
	exports.slots.piece(kept).Fail()
	exports.Free(kept)
	if err := exports.Close(); err != nil {
		t.Error(err)
	}
}

// TestExportsAreReleasedOnce: each release function is called once, when the object is evicted and
// not before.
func TestExportsAreReleasedOnce(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	exports, err := NewExports(machine, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		wantClean(t, exports.Check())
		if err := exports.Close(); err != nil {
			t.Error(err)
		}
	})
	p := machine.pool(t, small)
	if exports.ID() == p.ID() || exports.ID() == [16]byte{} {
		t.Errorf("the pools are called %x and %x", exports.ID(), p.ID())
	}
	s := newStore(t, shmstore.Heap)
	back := make([]int, 4)
	put := func(i int, charge shmstore.ReaderSet) shmstore.Handle {
		r, piece := mustReserveOn(t, s, exports, 0, charge)
		exports.Keep(piece, func() { back[i]++ })
		exports.slots.piece(piece).Fail()
		if named := exports.Piece(piece); named.Fault.Host.Load() != named.Generation || named.Number != piece {
			t.Errorf("piece %d is %+v", piece, named)
		}
		wantClean(t, exports.Check())
		return mustCommit(t, r)
	}
	held := put(0, shmstore.Readers(shmstore.LocalReader))
	put(1, 0)
	put(2, 0) // in the slot of 1
	if !slices.Equal(back, []int{0, 1, 0, 0}) {
		t.Errorf("released: %v", back)
	}
	if err := exports.Close(); !errors.Is(err, shmstore.ErrBusy) {
		t.Errorf("Close with pieces in use: %v", err)
	}
	aborted, piece := mustReserveOn(t, s, exports, 0, 0)
	exports.Keep(piece, func() { back[3]++ })
	exports.slots.piece(piece).Fail()
	aborted.Abort()
	s.FreeUnused()
	if err := s.Local().Drop(held); err != nil {
		t.Error(err)
	}
	if left := s.FreeUnusedOn(exports); left != 0 || !slices.Equal(back, []int{1, 1, 1, 1}) {
		t.Errorf("%d are left, released: %v", left, back)
	}
}

// TestFailedReservationsLeaveNoPiece: a piece that was never exposed is free at once when its
// reservation fails or is aborted.
func TestFailedReservationsLeaveNoPiece(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	p := machine.pool(t, small)
	exports, err := NewExports(machine, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		wantClean(t, exports.Check())
		if err := exports.Close(); err != nil {
			t.Error(err)
		}
	})
	s := newStore(t, shmstore.Heap)
	for name, dev := range map[string]shmstore.Device{"pool": p, "exports": exports} {
		t.Run(name, func(t *testing.T) {
			wantNone := func(what string) {
				t.Helper()
				if pieces, late := dev.Pieces(), dev.(interface{ Late() int }).Late(); pieces != 0 || late != 0 {
					t.Errorf("%s: %d pieces in use, and %d late, want none", what, pieces, late)
				}
			}
			full, err := s.Reserve(600<<10, codec.IDRaw, 0)
			if err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if _, _, err := s.ReserveOn(dev, 1<<10, 600<<10, codec.IDRaw, 0); !errors.Is(err, shmstore.ErrFull) {
					t.Fatalf("reserve in a full arena: %v", err)
				}
			}
			wantNone("without space in the arena")
			full.Abort()
			r, _ := mustReserveOn(t, s, dev, 1<<10, 0)
			r.Abort() // without a call of Chunk or Piece
			s.FreeUnusedOn(dev)
			wantNone("given up")
		})
	}
}
