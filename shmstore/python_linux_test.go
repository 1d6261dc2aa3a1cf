package shmstore

import (
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// pythonReader is a process in Python that attaches to a store, at the other end of conn.
func pythonReader(t *testing.T) (*pythontest.Process, *net.UnixConn) {
	t.Helper()
	ours, theirs := socketPair(t)
	cmd := pythontest.Command(t, "testdata/reader.py")
	cmd.ExtraFiles = []*os.File{theirs}
	p := pythontest.Start(t, cmd)
	theirs.Close()
	return p, connOf(t, ours)
}

func admitPython(t *testing.T, s *Store) (*pythontest.Process, ReaderID) {
	t.Helper()
	p, conn := pythonReader(t)
	id, err := s.Admit(conn)
	if err != nil {
		t.Fatal(err)
	}
	p.Tell([]any{"attached"})
	p.Want(nil)
	return p, id
}

func numbers(h Handle) []any {
	return []any{h.Store, h.Gen, h.Offset, h.Size, h.Slot, h.Codec}
}

// TestPythonReads: a reader in Python takes each object once for which it was charged, and pins others;
// its leases hold objects exactly as long as a view of them lives.
func TestPythonReads(t *testing.T) {
	s := create(t, small(Shared))
	p, id := admitPython(t, s)
	data := content(100, 1)
	h := mustPut(t, s, data, Readers(id))
	p.Tell([]any{"read", "take", numbers(h), true})
	p.Want(crc32.ChecksumIEEE(data))
	p.Tell([]any{"read", "take", numbers(h), false})
	p.Want("NoDebt")
	p.Tell([]any{"drop", numbers(h)})
	p.Want("NoDebt")
	a := s.accounts[len(s.accounts)-1]
	if done := a.ledger[h.Slot].done.Load(); done != 0 {
		t.Errorf("settled %d debts while a view lives", done)
	}
	p.Tell([]any{"let_go"})
	p.Want(nil)
	if done := a.ledger[h.Slot].done.Load(); done != 1 {
		t.Errorf("settled %d debts", done)
	}
	pinned := mustPut(t, s, data, 0)
	p.Tell([]any{"read", "pin", numbers(pinned), true})
	p.Want(crc32.ChecksumIEEE(data))
	if pins := a.ledger[pinned.Slot].pin.Load(); pins != 1 {
		t.Errorf("%d pins while a view lives", pins)
	}
	p.Tell([]any{"let_go"})
	p.Want(nil)
	if pins := a.ledger[pinned.Slot].pin.Load(); pins != 0 {
		t.Errorf("%d pins are left", pins)
	}
	p.Tell([]any{"rings"})
	p.Want(0)
	s.WantRoom(true)
	dropped := mustPut(t, s, data, Readers(id))
	p.Tell([]any{"drop", numbers(dropped)})
	p.Want(nil)
	p.Tell([]any{"rings"}) // because the owner waits for space
	p.Want(1)
	p.Tell([]any{"close"})
	p.Want(nil)
	p.Tell([]any{"read", "pin", numbers(pinned), false})
	p.Want("OmnibusError")
	if done := a.ledger[dropped.Slot].done.Load(); done != s.columns[id][dropped.Slot] {
		t.Errorf("settled %d of %d debts", done, s.columns[id][dropped.Slot])
	}
	for _, v := range s.Check() {
		t.Error(v)
	}
}

// TestPythonReadsLarge: a reader in Python reads an object with a segment of its own after it got the segment, and
// keeps it as long as a view of it lives.
func TestPythonReadsLarge(t *testing.T) {
	opts := small(Shared)
	opts.LargeObjectBytes, opts.MaxLargeBytes, opts.MaxObjectBytes = 1<<10, 1<<20, 1<<20
	s := create(t, opts)
	p, id := admitPython(t, s)
	data := content(100_000, 1)
	h := mustPut(t, s, data, Readers(id))
	p.Tell([]any{"read", "take", numbers(h), false})
	p.Want("NoSegment")
	fd, _, err := s.LargeSegment(h)
	if err != nil {
		t.Fatal(err)
	}
	p.Tell([]any{"add", numbers(mustPut(t, s, data[:100], 0)), os.Getpid(), fd})
	p.Want("Corrupt")
	longer := h
	longer.Size += 1 << 20
	p.Tell([]any{"add", numbers(longer), os.Getpid(), fd})
	p.Want("Corrupt")
	p.Tell([]any{"add", numbers(h), os.Getpid(), fd})
	p.Want(nil)
	p.Tell([]any{"read", "take", numbers(h), true})
	p.Want(crc32.ChecksumIEEE(data))
	s.FreeUnused()
	if st := s.Stats(); st.LargeBytes == 0 {
		t.Error("the object is gone while a view of it lives")
	}
	p.Tell([]any{"let_go"})
	p.Want(nil)
	s.FreeUnused()
	p.Tell([]any{"read", "pin", numbers(h), false})
	p.Want("Stale")
	for _, v := range s.Check() {
		t.Error(v)
	}
}

// TestPythonRefusesHandles: a handle that is wrong in any field, or whose object was evicted,
// is an error and never bytes.
func TestPythonRefusesHandles(t *testing.T) {
	s := create(t, small(Shared))
	p, id := admitPython(t, s)
	h := mustPut(t, s, content(100, 1), Readers(id))
	for _, how := range []string{"take", "pin"} {
		for i := range numbers(h) {
			for _, wrong := range []uint64{0, 1 << 63, ^uint64(0), rand.Uint64()} {
				bad := numbers(h)
				if i == 5 || i == 4 {
					wrong = uint64(uint32(wrong)) | 1<<20
				}
				if i == 2 && wrong == h.Offset {
					wrong = 64
				}
				bad[i] = wrong
				p.Tell([]any{"read", how, bad, false})
				var got any
				if err := p.Answer(&got); err != nil || got != "Corrupt" && got != "Stale" {
					t.Errorf("%s of %v, which is %v: %v, %v", how, bad, numbers(h), got, err)
				}
			}
		}
	}
	p.Tell([]any{"read", "take", numbers(h), false})
	p.Want(crc32.ChecksumIEEE(content(100, 1)))
	for i := range 1000 { // which evicts it
		mustPut(t, s, content(1000, uint64(i)), 0)
	}
	for _, how := range []string{"take", "pin"} {
		p.Tell([]any{"read", how, numbers(h), false})
		p.Want("Stale")
	}
	for _, v := range s.Check() {
		t.Error(v)
	}
}

// TestPythonPinsWhileTheOwnerEvicts: a pin during the eviction of its object gives an error, or
// the object.
func TestPythonPinsWhileTheOwnerEvicts(t *testing.T) {
	s := create(t, small(Shared))
	p, _ := admitPython(t, s)
	var had, stale int
	for i := range uint64(300) {
		data := content(900, i)
		p.Tell([]any{"read", "pin", numbers(mustPut(t, s, data, 0)), false})
		for n := range i % 40 {
			mustPut(t, s, content(900, 1000+n), 0)
		}
		var got any
		switch err := p.Answer(&got); {
		case err == nil && got == "Stale":
			stale++
		case err == nil && got == float64(crc32.ChecksumIEEE(data)):
			had++
		default:
			t.Errorf("object %d: %v, %v", i, got, err)
		}
	}
	t.Logf("%d had, %d stale", had, stale)
	for _, v := range s.Check() {
		t.Error(v)
	}
}

// TestPythonChecksTheOwner: a reader in Python refuses an invalid message or segment of the owner before it
// uses it.
func TestPythonChecksTheOwner(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(geo *message, fds *[]int, s *Store)
		want  string
	}{
		{"as it should be", func(*message, *[]int, *Store) {}, ""},
		{"no slots", func(geo *message, _ *[]int, _ *Store) { geo.slots = 0 }, "ProtocolError"},
		{"too many slots", func(geo *message, _ *[]int, _ *Store) { geo.slots = 1<<32 - 1 }, "ProtocolError"},
		{"another size", func(geo *message, _ *[]int, _ *Store) { geo.arena *= 2 }, "ProtocolError"},
		{"an arena that no memory has", func(geo *message, _ *[]int, _ *Store) { geo.arena = 1 << 60 }, "ProtocolError"},
		{"no store", func(geo *message, _ *[]int, _ *Store) { geo.store = 0 }, "ProtocolError"},
		{"another store", func(geo *message, _ *[]int, _ *Store) { geo.store++ }, "ProtocolError"},
		{"the owner's index", func(geo *message, _ *[]int, _ *Store) { geo.reader = 0 }, "ProtocolError"},
		{"a descriptor less", func(_ *message, fds *[]int, _ *Store) { *fds = (*fds)[:2] }, "ProtocolError"},
		{"segments exchanged", func(_ *message, fds *[]int, _ *Store) { (*fds)[1], (*fds)[2] = (*fds)[2], (*fds)[1] }, "ProtocolError"},
		{"unsealed", func(_ *message, fds *[]int, s *Store) {
			fd, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
			if err == nil {
				err = unix.Ftruncate(fd, int64(s.geo.arena))
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { unix.Close(fd) })
			(*fds)[0] = fd
		}, "ProtocolError"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := create(t, small(Shared))
			p, conn := pythonReader(t)
			if _, _, err := receive(conn, messageHello, 0); err != nil {
				t.Fatal(err)
			}
			geo := message{kind: messageGeometry, reader: 1, geometry: s.geo}
			own, err := newSuperblockSegment(superblock{kind: kindAccount, reader: 1, geometry: s.geo}, columnBytes(int(s.geo.slots)))
			if err != nil {
				t.Fatal(err)
			}
			defer own.release()
			fds := []int{s.arenaSegment.fd, s.directorySegment.fd, own.fd}
			c.spoil(&geo, &fds, s)
			if err := send(conn, geo); err != nil {
				t.Fatal(err)
			}
			if _, ledger, err := receive(conn, messageLedger, 1); err == nil { // or the reader ended before
				closeAll(ledger)
				_ = send(conn, message{kind: messageGrant, geometry: geometry{store: geo.store}}, fds...)
			}
			p.Tell([]any{"attached"})
			var got *string
			if err := p.Answer(&got); err != nil {
				t.Fatal(err)
			}
			if c.want == "" && got != nil || c.want != "" && (got == nil || !strings.HasPrefix(*got, c.want)) {
				t.Errorf("Python says %v", got)
			}
		})
	}
}

// TestPythonDies: the objects of a killed reader in Python stay until the owner removes it, and are
// freed then, and no others.
func TestPythonDies(t *testing.T) {
	s := create(t, small(Shared))
	p, id := admitPython(t, s)
	data := content(100, 1)
	taken, pinned := mustPut(t, s, data, Readers(id)), mustPut(t, s, data, 0)
	for how, h := range map[string]Handle{"take": taken, "pin": pinned} {
		p.Tell([]any{"read", how, numbers(h), true})
		p.Want(crc32.ChecksumIEEE(data))
	}
	p.Kill()
	for i := range 1000 {
		mustPut(t, s, content(1000, uint64(i)), 0)
	}
	for _, h := range []Handle{taken, pinned} {
		if !isPresent(s.lines[h.Slot].word.load(), h.Gen) {
			t.Errorf("%v is gone while the owner knows of its reader", h)
		}
	}
	if err := s.RemoveReader(id); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		mustPut(t, s, content(1000, uint64(i)), 0)
	}
	for _, h := range []Handle{taken, pinned} {
		if isPresent(s.lines[h.Slot].word.load(), h.Gen) {
			t.Errorf("%v stays when its reader is removed", h)
		}
	}
	for _, v := range s.Check() {
		t.Error(v)
	}
}
