package shelf

import (
	"fmt"
	"testing"
)

// BenchmarkTake is a value taken and cleared, with its lock given up later, while so many
// others are held.
func BenchmarkTake(b *testing.B) {
	for _, held := range []int{0, 100, 1000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			s := newShelf(b)
			one := taker(b, s)
			for range held {
				if !one.has(put(b, s, 1), 1) {
					b.Fatal("not to be had")
				}
			}
			for b.Loop() {
				number := put(b, s, 1)
				if !one.has(number, 1) {
					b.Fatal("not to be had")
				}
				s.Clear(number)
			}
		})
	}
}
