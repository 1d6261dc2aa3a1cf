package bus

import (
	"testing"

	"pgregory.net/rapid"
)

// TestOutput: a repeated handling sends exactly the emissions that were not sent before,
// for each order in which emissions were sent, and for each subset that failed.
func TestOutput(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var o output
		out := make(map[uint64]bool)
		var waiting []uint64
		t.Repeat(map[string]func(*rapid.T){
			"emit": func(t *rapid.T) {
				n, repeat := o.next()
				if repeat != out[n] {
					t.Fatalf("emission %d is one that went out: %t, want %t", n, repeat, out[n])
				}
				if !repeat {
					waiting = append(waiting, n)
				}
			},
			"go out": func(t *rapid.T) {
				if len(waiting) == 0 {
					t.Skip("nothing waits")
				}
				i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
				o.markSent(waiting[i])
				out[waiting[i]] = true
				waiting = append(waiting[:i], waiting[i+1:]...)
			},
			"fail": func(t *rapid.T) {
				if len(waiting) > 0 {
					waiting = waiting[1:]
				}
			},
			"repeat": func(*rapid.T) { o.seen, waiting = 0, nil },
		})
	})
}
