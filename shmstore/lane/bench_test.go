package lane

import (
	"fmt"
	"testing"
)

// BenchmarkPass is the cost of a frame without another process: sent, received
// and let go of by one goroutine, alone or in batches.
func BenchmarkPass(b *testing.B) {
	for _, tc := range []struct{ sizeBytes, batch int }{
		{sizeBytes: 64, batch: 1},
		{sizeBytes: 64, batch: 16},
		{sizeBytes: 4096, batch: 1},
	} {
		b.Run(fmt.Sprintf("%d-bytes/batch-%d", tc.sizeBytes, tc.batch), func(b *testing.B) {
			s, r := heapLane(b, 1<<18, Options{})
			buf := make([]byte, tc.sizeBytes)
			b.SetBytes(int64(tc.sizeBytes))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := s.Append(1, buf); err != nil {
					b.Fatal(err)
				}
				if i%tc.batch != 0 {
					continue
				}
				s.Publish()
				for _, _, ok := r.Next(); ok; _, _, ok = r.Next() {
				}
				r.Advance()
			}
		})
	}
}
