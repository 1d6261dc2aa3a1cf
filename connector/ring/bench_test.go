package ring_test

import (
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func BenchmarkPutGet(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			r, err := ring.New(ring.Options{Store: shmstore.Options{ArenaBytes: 64 << 20}})
			if err != nil {
				b.Fatal(err)
			}
			defer r.Close()
			end := r.End()
			defer end.Close()
			value := make([]byte, size)
			fill := func(dst []byte) error { copy(dst, value); return nil }
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				meta, err := end.Put(b.Context(), edge, "key", size, fill)
				if err != nil {
					b.Fatal(err)
				}
				payload, err := end.Get(b.Context(), edge, "key", meta)
				if err != nil {
					b.Fatal(err)
				}
				payload.Release()
			}
		})
	}
}
