package ringbuf_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// TestAgainstModel does all operations of a writer, in any order, on rings of
// many shapes, and compares with the model after each step.
func TestAgainstModel(t *testing.T) { againstModel(t, false) }

// TestAgainstModelWithReuse does the same on rings that do not go round.
func TestAgainstModelWithReuse(t *testing.T) { againstModel(t, true) }

func againstModel(t *testing.T, reuse bool) {
	rapid.Check(t, func(t *rapid.T) {
		opts := ringbuf.Options{
			Align: rapid.SampledFrom([]int{1, 2, 8, 16, 32, 64, 512}).Draw(t, "align"),
			Reuse: reuse,
		}
		// From hardly anything to some dozens of chunks; the end is seldom
		// on the grid.
		least := max(opts.Align, ringbuf.HeaderSize) + 1
		size := rapid.IntRange(least, least+40*max(opts.Align, 16)).Draw(t, "size")
		x := newMachine(t, size, opts)

		payload := rapid.OneOf(rapid.IntRange(1, 48), rapid.IntRange(1, size))
		alloc := func(t *rapid.T) {
			x.allocate(t, payload.Draw(t, "bytes"), rapid.Uint32().Draw(t, "tag"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"":              func(t *rapid.T) { x.compare(t) },
			"allocate":      alloc,
			"allocate more": alloc, // so that rings fill up
			"allocate largest": func(t *rapid.T) {
				if room := int(x.m.largest() - min(x.m.largest(), ringbuf.HeaderSize)); room > 0 {
					x.allocate(t, room, 0)
				}
			},
			"release": func(t *rapid.T) {
				if n := len(x.m.live); n > 0 {
					x.release(t, rapid.IntRange(0, n-1).Draw(t, "chunk"))
				}
			},
			"release oldest": func(t *rapid.T) {
				if len(x.m.live) > 0 {
					x.release(t, 0)
				}
			},
			"release many": func(t *rapid.T) {
				n := len(x.m.live)
				places := rapid.Permutation(sequence(n)).Draw(t, "order")
				if rapid.Bool().Draw(t, "by age") {
					slices.Sort(places)
				}
				from := rapid.IntRange(0, n).Draw(t, "from")
				to := rapid.IntRange(from, n).Draw(t, "to")
				x.releaseAll(t, places[from:to], rapid.IntRange(0, 3).Draw(t, "stale") == 0)
			},
		})
	})
}

// sequence is 0, 1, 2 and so on up to n-1.
func sequence(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}
