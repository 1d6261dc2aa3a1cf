package shmstore

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

var testGeometry = geometry{store: 7, arena: 1 << 20, maxObject: 1 << 18, slots: 1024}

func TestMessages(t *testing.T) {
	for _, want := range []message{
		{kind: messageHello, pid: 4711},
		{kind: messageGeometry, reader: 63, geometry: testGeometry},
		{kind: messageLedger, geometry: geometry{store: 7}},
		{kind: messageGrant, geometry: geometry{store: 7}},
		{kind: messageRefusal, reason: reasonClosed},
	} {
		b := want.encode()
		got, err := decodeMessage(b[:], want.kind)
		if err != nil || got != want {
			t.Errorf("message %d came back as %+v, %v", want.kind, got, err)
		}
		for other := messageHello; other <= messageRefusal; other++ {
			_, err := decodeMessage(b[:], other)
			if other != want.kind && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrClosed) {
				t.Errorf("message %d passes for %d: %v", want.kind, other, err)
			}
		}
		for i := range b {
			damaged := b
			damaged[i] ^= 0x80
			m, err := decodeMessage(damaged[:], want.kind)
			if err == nil && m.encode() != damaged {
				t.Errorf("message %d with byte %d damaged is read as %+v", want.kind, i, m)
			}
		}
		_, err = decodeMessage(b[:messageBytes-1], want.kind)
		wantError(t, "a short message", err, ErrProtocol)
		_, err = decodeMessage(append(b[:], 0), want.kind)
		wantError(t, "a long message", err, ErrProtocol)
	}
}

// TestOnlyGeometryMessagesHaveAGeometry: a message of another kind that carries a geometry, or an index,
// is refused.
func TestOnlyGeometryMessagesHaveAGeometry(t *testing.T) {
	for _, kind := range []messageKind{messageHello, messageLedger, messageGrant} {
		for name, change := range map[string]func(m *message){
			"an arena": func(m *message) { m.arena = 1 },
			"objects":  func(m *message) { m.maxObject = 1 },
			"slots":    func(m *message) { m.slots = 1 },
			"an index": func(m *message) { m.reader = 1 },
		} {
			m := message{kind: kind, geometry: geometry{store: 7}}
			if kind == messageHello {
				m.pid, m.store = 7, 0
			}
			change(&m)
			b := m.encode()
			_, err := decodeMessage(b[:], kind)
			wantError(t, fmt.Sprintf("message %d with %s", kind, name), err, ErrProtocol)
		}
	}
}

// TestOtherVersionIsNamed: for two releases that do not fit together the error names the versions, and not
// a broken rule of a peer.
func TestOtherVersionIsNamed(t *testing.T) {
	m := message{kind: messageGrant, geometry: geometry{store: 7}}.encode()
	m[8]++
	_, err := decodeMessage(m[:], messageGrant)
	if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "use the same release on both sides") {
		t.Errorf("message of another version: %v", err)
	}
}

func TestGeometryIsBounded(t *testing.T) {
	for name, change := range map[string]func(m *message){
		"no store":         func(m *message) { m.store = 0 },
		"tiny arena":       func(m *message) { m.arena = 1 },
		"arena overflows":  func(m *message) { m.arena = 1 << 63 },
		"no slots":         func(m *message) { m.slots = 0 },
		"too many slots":   func(m *message) { m.slots = 1<<32 - 1 },
		"no objects":       func(m *message) { m.maxObject = 0 },
		"object overflows": func(m *message) { m.maxObject = 1 << 63 },
		"the local reader": func(m *message) { m.reader = 0 },
	} {
		m := message{kind: messageGeometry, reader: 1, geometry: testGeometry}
		change(&m)
		b := m.encode()
		_, err := decodeMessage(b[:], messageGeometry)
		wantError(t, name, err, ErrProtocol)
	}
}

func TestSuperblock(t *testing.T) {
	sb := superblock{kind: kindLedger, reader: 5, geometry: testGeometry}
	b := sb.encode()
	if err := sb.verify(b[:]); err != nil {
		t.Error(err)
	}
	for i := range b {
		damaged := b
		damaged[i]++
		wantError(t, "a damaged superblock", sb.verify(damaged[:]), ErrProtocol)
	}
	wantError(t, "a short superblock", sb.verify(b[:10]), ErrProtocol)
	sb.kind = kindAccount
	wantError(t, "another kind", sb.verify(b[:]), ErrProtocol)
}

// FuzzMessage: accepted bytes are exactly those that encode makes of the message, and the message is
// bounded.
func FuzzMessage(f *testing.F) {
	for _, m := range []message{
		{kind: messageHello, pid: 1},
		{kind: messageGeometry, reader: 1, geometry: testGeometry},
		{kind: messageGrant, geometry: geometry{store: 7}},
	} {
		b := m.encode()
		f.Add(b[:], uint32(m.kind))
	}
	f.Fuzz(func(t *testing.T, b []byte, kind uint32) {
		m, err := decodeMessage(b, messageKind(kind))
		switch {
		case err != nil:
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("error %v is not typed", err)
			}
		case string(b) != func() string { e := m.encode(); return string(e[:]) }():
			t.Errorf("%x was accepted as %+v", b, m)
		case m.kind == messageGeometry && m.geometry.check() != nil:
			t.Errorf("an unbounded geometry was accepted: %+v", m)
		}
	})
}

// FuzzSuperblock: no other bytes are accepted as the expected superblock.
func FuzzSuperblock(f *testing.F) {
	sb := superblock{kind: kindDirectory, geometry: testGeometry}
	want := sb.encode()
	f.Add(want[:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		is := len(b) >= superblockBytes && bytes.Equal(b[:superblockBytes], want[:])
		if err := sb.verify(b); (err == nil) != is {
			t.Errorf("verify(%x) = %v", b, err)
		}
	})
}

// FuzzLine: a reader of a directory with arbitrary bytes, as the owner
// could have written them, returns bytes inside the arena, or inside the
// segment that it was given for the object, or an error.
func FuzzLine(f *testing.F) {
	s := create(f, small(Heap))
	r := mustDeclare(f, s, "reader")
	r.large = newLargeTable()
	if err := r.large.add(1, largeObject{segment: &segment{data: make([]byte, 100), fd: -1}, size: 100, slot: 3}); err != nil {
		f.Fatal(err)
	}
	f.Add(wordOf(1, stateLive), uint64(largeOffset), uint64(100), uint32(1), uint32(1), uint64(1), uint64(largeOffset), uint64(100))
	f.Add(wordOf(1, stateLive), uint64(largeOffset), uint64(101), uint32(1), uint32(1), uint64(1), uint64(largeOffset), uint64(101))
	f.Add(uint64(0), uint64(0), uint64(0), uint32(0), uint32(0), uint64(1), uint64(0), uint64(0))
	f.Add(wordOf(1, stateLive), uint64(64), uint64(10), uint32(1), uint32(1), uint64(1), uint64(64), uint64(10))
	f.Add(wordOf(1, stateLive), ^uint64(0), uint64(10), uint32(1), ^uint32(0), uint64(1), ^uint64(0), uint64(10))
	f.Add(wordOf(1, stateAborted), uint64(1), minArenaBytes+uint64(0), uint32(1), uint32(1), uint64(1), uint64(1), minArenaBytes+uint64(0))
	f.Fuzz(func(t *testing.T, word, offset, size uint64, codec, owed uint32, gen, handleOffset, handleSize uint64) {
		if stateOf(word) == stateClosing {
			word = wordOf(genOf(word), stateLive) // a reader waits for the other state
		}
		ln := &s.lines[3]
		ln.word.store(word)
		ln.offset, ln.size, ln.codec = offset, size, codec
		r.owed[3] = r.taken[3].Load() + owed
		h := Handle{Store: s.geo.store, Gen: gen, Offset: handleOffset, Size: handleSize, Slot: 3, Codec: codec}
		for _, read := range []func(Handle) (Lease, error){r.Take, r.Pin} {
			l, err := read(h)
			if err != nil {
				continue
			}
			if uint64(len(l.Bytes())) != size {
				t.Errorf("%d bytes for a line that says %d", len(l.Bytes()), size)
			}
			l.Release()
		}
		ln.word.store(0)
		r.owed[3] = r.taken[3].Load()
	})
}
