package shmstore

import (
	"errors"
	"math"
	"slices"

	"pgregory.net/rapid"
)

// A liar is a reader that writes arbitrary counts into its ledger. It can keep objects
// from being evicted as long as it is present, and nothing else: the promises to other
// readers hold beside it.

// Lie adds the liar, or has it write into its ledger.
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

// ChargeLiar delivers an object to the liar and others. The put may be refused because
// the liar is in quarantine.
func (m *model) ChargeLiar(t *rapid.T) {
	if m.liar == nil {
		t.Skip("there is no liar")
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

// Expose removes the liar, with its debts and pins.
func (m *model) Expose(t *rapid.T) {
	if m.liar == nil {
		t.Skip("there is no liar")
	}
	if err := m.store.RemoveReader(m.liar.ID()); err != nil {
		t.Fatal(err)
	}
	m.liar = nil
}

// end requires that all objects that no reader owes for are freed, after the liar is removed, leases are
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

// violations are those of the store, without those in the liar's ledger.
func (m *model) violations() []Violation {
	found := m.store.Check()
	if m.liar == nil {
		return found
	}
	return slices.DeleteFunc(found, func(v Violation) bool {
		return v.Invariant == InvariantOverdraft || v.Invariant == InvariantSettled || v.Invariant == InvariantCollected
	})
}
