package shmstore

import (
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
)

// The promises of the model of model_test.go for objects with a piece of a
// device: the piece exists exactly as long as the object.

func (m *model) ReserveOn(t *rapid.T) {
	charge := m.charge(t)
	size, deviceBytes := rapid.IntRange(0, 700).Draw(t, "size"), rapid.Int64Range(0, m.device.MaxBytes()).Draw(t, "on the device")
	r, piece, err := m.store.ReserveOn(m.device, deviceBytes, size, codec.IDRaw, charge)
	if err != nil {
		m.full(t, err)
		return
	}
	m.pending = append(m.pending, pendingReservation{r, charge, &piece})
}

func (m *model) FreeUnusedOn(t *rapid.T) {
	left := m.store.FreeUnusedOn(m.device)
	for _, o := range m.objects {
		o.gone = o.gone || m.liar == nil && o.piece != nil && !m.mustBeThere(o)
	}
	if want := m.device.Pieces(); left != want {
		t.Fatalf("the store counts %d objects with a piece, the device has %d in use", left, want)
	}
}

// checkPieces requires that the pieces of all present objects are in use, and
// no others, except those of aborted reservations.
func (m *model) checkPieces(t *rapid.T) {
	held := make(map[uint32]bool)
	hold := func(piece *uint32, of any) {
		if piece == nil {
			return
		}
		if _, inUse := m.device.pieces[*piece]; held[*piece] || !inUse {
			t.Errorf("piece %d of %v is not in use, or another's too", *piece, of)
		}
		held[*piece] = true
	}
	for _, p := range m.pending {
		hold(p.piece, "a reservation")
	}
	for _, o := range m.objects {
		if l, err := m.store.Local().Pin(o.handle); err == nil {
			l.Release()
			hold(o.piece, o.handle)
		}
	}
	if others := m.device.Pieces() - len(held); others < 0 || others > m.aborted() {
		t.Errorf("%d pieces are in use that no object holds, %d reservations are aborted", others, m.aborted())
	}
}

// aborted is the number of slots of reservations that were aborted and not freed
// yet.
func (m *model) aborted() (n int) {
	for slot := range m.store.lines {
		if stateOf(m.store.lines[slot].word.load()) == stateAborted {
			n++
		}
	}
	return n
}
