package posix

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/connector"
)

// TestIndexModel: an index has what was added and not removed, and looks along few
// cells for it, whatever was there before.
func TestIndexModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const slots = 8
		x := make(index, indexCells(slots))
		type entry struct {
			at   int
			hash uint64
		}
		model := map[uint32]entry{}
		hash := rapid.Custom(func(t *rapid.T) uint64 {
			// Few places and few tags, so that they meet.
			return rapid.Uint64Range(0, 3).Draw(t, "tag")<<tagShift | rapid.Uint64Range(0, 3).Draw(t, "place")
		})
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				slot := rapid.Uint32Range(0, slots-1).Draw(t, "slot")
				if _, ok := model[slot]; ok {
					t.Skip("in use")
				}
				h := hash.Draw(t, "hash")
				model[slot] = entry{x.add(h, slot), h}
			},
			"remove": func(t *rapid.T) {
				slot := rapid.Uint32Range(0, slots-1).Draw(t, "slot")
				e, ok := model[slot]
				if !ok {
					t.Skip("not there")
				}
				x.remove(e.at)
				delete(model, slot)
			},
			"": func(t *rapid.T) {
				for slot, e := range model {
					found := slices.ContainsFunc(slices.Collect(x.find(e.hash)), func(c candidate) bool { return c.slot() == slot && x.has(c) })
					if !found {
						t.Fatalf("slot %d with hash %x is not found in %v", slot, e.hash, x)
					}
				}
				if len(model) > 0 {
					return
				}
				for i := range x {
					if x[i].Load() != emptyCell {
						t.Fatalf("cell %d of an index without entries is not empty", i)
					}
				}
			},
		})
	})
}

// TestAddresses: what lies behind a value tells it from all others.
func TestAddresses(t *testing.T) {
	at := func(from, to, key string) address { return address{connector.Edge{From: from, To: to}, key} }
	addresses := []address{at("a", "b", "c"), at("ab", "", "c"), at("a", "bc", ""), at("", "", "abc"), at("a", "b", "d")}
	for _, p := range addresses {
		payload := make([]byte, 3+p.labelBytes())
		copy(payload, "val")
		p.label(payload[3:])
		for _, q := range addresses {
			value, ok := q.unlabel(payload)
			if ok != (p == q) || ok && string(value) != "val" {
				t.Errorf("%v as %v: %q, %t", p, q, value, ok)
			}
			if (p.hash() == q.hash()) != (p == q) {
				t.Errorf("%v and %v: %x and %x", p, q, p.hash(), q.hash())
			}
		}
		for n := range payload {
			if _, ok := p.unlabel(payload[n+1:]); ok && n >= 3 {
				t.Errorf("%v: the last %d bytes are taken for a payload", p, len(payload)-n-1)
			}
		}
	}
}
