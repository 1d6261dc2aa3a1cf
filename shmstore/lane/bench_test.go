package lane

import (
	"fmt"
	"testing"
)

// BenchmarkPass is the cost of a frame without another process: one goroutine sends, receives
// and frees it.
func BenchmarkPass(b *testing.B) {
	for _, sizeBytes := range []int{64, 4096} {
		b.Run(fmt.Sprintf("%d-bytes", sizeBytes), func(b *testing.B) {
			s, r := heapLane(b, 1<<18)
			buf := make([]byte, sizeBytes)
			b.SetBytes(int64(sizeBytes))
			b.ReportAllocs()
			for b.Loop() {
				if err := s.TrySend(1, buf); err != nil {
					b.Fatal(err)
				}
				for _, _, ok := r.Next(); ok; _, _, ok = r.Next() {
				}
				r.Advance()
			}
		})
	}
}
