package wire_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// laterFields are the fields that a message got after it was there.
var laterFields = map[wire.Kind]struct {
	since uint16
	names []string
}{
	wire.KindOpen:    {since: 2, names: []string{"trace"}},
	wire.KindSubmit:  {since: 2, names: []string{"trace"}},
	wire.KindWelcome: {since: 5, names: []string{"tensors"}},
	wire.KindServing: {since: 5, names: []string{"tensors"}},
	wire.KindLeave:   {since: 6, names: []string{"stages"}},
	wire.KindEnded:   {since: 3, names: []string{"edge", "key", "seq"}},
}

// TestVersionsAgree holds every message to the same bytes in all versions that
// have it, but for the fields that came later. So the vectors, most of which
// are of the newest version, hold for the older ones too.
func TestVersionsAgree(t *testing.T) {
	for _, s := range samples() {
		kind := s.message.Kind()
		oldest := kind.Since()
		if later, ok := laterFields[kind]; ok && s.version >= later.since {
			oldest = later.since
		}
		want, err := wire.Append(nil, s.version, s.message, s.descriptors)
		if err != nil {
			t.Fatal(err)
		}
		for version := oldest; version < s.version; version++ {
			got, err := wire.Append(nil, version, s.message, s.descriptors)
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s in version %d: %x, %v; in version %d: %x", s.name, version, got, err, s.version, want)
			}
		}
		if oldest > kind.Since() {
			got, err := wire.Append(nil, oldest-1, s.message, s.descriptors)
			if err != nil || len(got) >= len(want) || !bytes.Equal(got[4:], want[4:len(got)]) {
				t.Errorf("%s in version %d: %x, %v; want the beginning of %x", s.name, oldest-1, got, err, want)
			}
		}
	}
}

// TestKindsBelowTheirVersion refuses every kind in the versions before it, on
// both sides, and takes it from then on.
func TestKindsBelowTheirVersion(t *testing.T) {
	later := 0
	for _, s := range samples() {
		kind := s.message.Kind()
		if kind.Since() > wire.VersionMin {
			later++
		}
		newest, err := wire.Append(nil, s.version, s.message, s.descriptors)
		if err != nil {
			t.Fatal(err)
		}
		h, body, _, err := wire.Next(newest)
		if err != nil {
			t.Fatal(err)
		}
		for version := range s.version + 1 {
			b, appendErr := wire.Append([]byte("before"), version, s.message, s.descriptors)
			_, parseErr := wire.Parse(h, body, version)
			if version >= kind.Since() {
				if appendErr != nil || parseErr != nil {
					t.Errorf("%s in version %d: Append: %v; Parse: %v", s.name, version, appendErr, parseErr)
				}
				continue
			}
			if !errors.Is(appendErr, wire.CodeInvalid) || string(b) != "before" {
				t.Errorf("Append of %s in version %d: %q, %v; want nothing appended, and invalid", s.name, version, b, appendErr)
			}
			if !errors.Is(parseErr, wire.ErrProtocol) {
				t.Errorf("Parse of %s in version %d: %v, want ErrProtocol", s.name, version, parseErr)
			}
		}
	}
	if later == 0 {
		t.Error("no sample is of a kind that came later")
	}
	if got := wire.Kind(61).Since(); got != 0 {
		t.Errorf("a number that is no kind is there since version %d", got)
	}
}

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
