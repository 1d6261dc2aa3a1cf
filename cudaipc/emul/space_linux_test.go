package emul

import (
	"testing"

	"pgregory.net/rapid"
)

// TestSpace: allocated spans do not overlap, and all of them merge into one when they are freed.
func TestSpace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &space{}
		defer s.close()
		var taken []span
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				bytes := uintptr(rapid.IntRange(1, 600).Draw(t, "pages")) << 12
				align := uintptr(1) << rapid.IntRange(12, 21).Draw(t, "align")
				base, err := s.reserve(bytes, align)
				if err != nil {
					t.Fatal(err)
				}
				got := span{base, bytes}
				if base%align != 0 || !s.overlaps(got) {
					t.Fatalf("%#x is not reserved, or no multiple of %#x", base, align)
				}
				for _, other := range taken {
					if got.overlaps(other) {
						t.Fatalf("%+v overlaps %+v", got, other)
					}
				}
				taken = append(taken, got)
			},
			"give": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip("nothing is taken")
				}
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				s.release(taken[i])
				taken = append(taken[:i], taken[i+1:]...)
			},
			"": func(t *rapid.T) {
				for i := 1; i < len(s.free); i++ {
					if s.free[i-1].end() >= s.free[i].base {
						t.Fatalf("%+v and %+v are not apart", s.free[i-1], s.free[i])
					}
				}
			},
		})
		for _, g := range taken {
			s.release(g)
		}
		if len(s.reserved) > 0 && (len(s.free) != 1 || s.free[0] != s.reserved[0]) && len(s.reserved) == 1 {
			t.Fatalf("%+v is free of %+v", s.free, s.reserved)
		}
	})
}
