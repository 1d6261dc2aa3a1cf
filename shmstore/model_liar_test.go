package shmstore

import (
	"errors"
	"math"
	"slices"

	"pgregory.net/rapid"
)

// A liar is a reader that writes into its ledger whatever it likes. It can keep objects
// from being evicted for as long as it is there, and nothing else: what others are
// promised holds beside it.

// Lie has the liar come, or write into its ledger.
func (m *model) Lie(t *rapid.T) {
	if m.liar == nil {
		r, err := m.store.DeclareReader("liar")
		if err != nil {
			t.Skip(err)
		}
		m.liar = startAt(r, rapid.SampledFrom(countsBegin).Draw(t, "the liar's counts begin at"))
	}
	e := &m.liar.ledger[rapid.IntRange(0, len(m.liar.ledger)-1).Draw(t, "slot")]
	field := &e.pin
	if rapid.Bool().Draw(t, "done") {
		field = &e.done
	}
	field.Add(rapid.SampledFrom([]uint32{1, math.MaxUint32, maxDebts, 1 << 31}).Draw(t, "by"))
}

// ChargeLiar delivers an object to the liar and others. It may be refused for the liar's
// sake: then it is in quarantine.
func (m *model) ChargeLiar(t *rapid.T) {
	if m.liar == nil {
		t.Skip("nobody lies")
	}
	data, charge, liar := m.data(t), m.charge(t), Readers(m.liar.ID())
	h, err := m.store.Put(data, charge|liar)
	switch {
	case err == nil:
		m.added(h, data, charge, 0)
	case errors.Is(err, ErrQuarantined) && m.store.Stats().Quarantined == liar:
	default:
		m.full(t, err)
	}
}

// Expose removes the liar, and with it all that it held.
func (m *model) Expose(t *rapid.T) {
	if m.liar == nil {
		t.Skip("nobody lies")
	}
	if err := m.store.RemoveReader(m.liar.ID()); err != nil {
		t.Fatal(err)
	}
	m.liar = nil
}

// end wants all to come back that nobody owes for, when the liar is gone, leases are
// released and reservations aborted.
func (m *model) end(t *rapid.T) {
	if m.liar != nil {
		m.Expose(t)
	}
	owed := 0
	for _, o := range m.objects {
		if o.held = 0; m.mustBeThere(o) {
			owed++
		}
	}
	m.store.FreeUnused()
	if left := m.store.Stats().Objects; left != owed {
		t.Errorf("%d objects stay, and %d are owed", left, owed)
	}
}

// violations are what the store finds, but for what it finds in the liar's ledger.
func (m *model) violations() []Violation {
	found := m.store.Check()
	if m.liar == nil {
		return found
	}
	return slices.DeleteFunc(found, func(v Violation) bool {
		return v.Invariant == InvariantOverdraft || v.Invariant == InvariantSettled || v.Invariant == InvariantCollected
	})
}
