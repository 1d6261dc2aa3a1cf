package wire_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

func TestNegotiate(t *testing.T) {
	tests := []struct {
		name                   string
		minA, maxA, minB, maxB uint16
		want                   uint16
		ok                     bool
	}{
		{name: "the same", minA: 1, maxA: 2, minB: 1, maxB: 2, want: 2, ok: true},
		{name: "a newer client", minA: 1, maxA: 2, minB: 2, maxB: 3, want: 2, ok: true},
		{name: "an older client", minA: 1, maxA: 2, minB: 1, maxB: 1, want: 1, ok: true},
		{name: "a client too new", minA: 1, maxA: 2, minB: 3, maxB: 4},
		{name: "a client too old", minA: 2, maxA: 3, minB: 1, maxB: 1},
		{name: "one inside the other", minA: 1, maxA: 9, minB: 4, maxB: 5, want: 5, ok: true},
		{name: "a range that is none", minA: 1, maxA: 2, minB: 2, maxB: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := wire.Negotiate(tt.minA, tt.maxA, tt.minB, tt.maxB)
			if got != tt.want || ok != tt.ok {
				t.Errorf("Negotiate = %d, %v; want %d, %v", got, ok, tt.want, tt.ok)
			}
			if swapped, _ := wire.Negotiate(tt.minB, tt.maxB, tt.minA, tt.maxA); swapped != got {
				t.Errorf("Negotiate the other way round = %d, want %d", swapped, got)
			}
		})
	}
}
