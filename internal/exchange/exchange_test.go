package exchange

import (
	"log/slog"
	"math"
	"slices"
	"testing"
)

// TestHostOwnerNumbersWrap: no two endpoints in the host's process have one owner, and none has the
// number of the lasting owner, which Close of an endpoint does not close.
func TestHostOwnerNumbersWrap(t *testing.T) {
	x := New(Options{Logger: slog.New(slog.DiscardHandler)})
	ends := []*endpoint{x.openEndpoint(false)}
	x.lastNumber = math.MaxUint32 - 2
	for range 3 {
		ends = append(ends, x.openEndpoint(false))
	}
	var numbers []uint32
	for _, e := range ends {
		numbers = append(numbers, e.number)
	}
	if want := []uint32{1, math.MaxUint32 - 1, 0, 2}; !slices.Equal(numbers, want) {
		t.Fatalf("the numbers of the owners are %d, want %d", numbers, want)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(x.account.Owners()); n != 0 {
		t.Errorf("%d owners are left, want none", n)
	}
}
