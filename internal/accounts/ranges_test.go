package accounts

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestRanges: payloads that do not overlap are accepted, and payloads that overlap are refused.
func TestRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r ranges
		var model []span
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(model) > 0 && rapid.Bool().Draw(t, "remove") {
				i := rapid.IntRange(0, len(model)-1).Draw(t, "which")
				r.remove(model[i].from)
				model = slices.Delete(model, i, i+1)
				continue
			}
			s := span{from: rapid.Uint64Range(0, 60).Draw(t, "from")}
			s.to = s.from + rapid.Uint64Range(1, 8).Draw(t, "size")
			final := slices.ContainsFunc(model, func(o span) bool { return s.from < o.to && o.from < s.to })
			err := r.add(s.from, s.to-s.from)
			if errors.Is(err, wire.ErrProtocol) != final {
				t.Fatalf("%v beside %v: %v", s, model, err)
			}
			if err == nil {
				model = append(model, s)
			}
		}
	})
}
