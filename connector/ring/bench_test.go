package ring_test

import (
	"fmt"
	"log/slog"
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

// BenchmarkCleanup releases one value of an owner with many values.
func BenchmarkCleanup(b *testing.B) {
	for _, others := range []int{1, 65_536} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			table := ring.NewTable(0, slog.New(slog.DiscardHandler))
			owner := table.Owner("one process")
			p := &freed{}
			for i := range others {
				if _, err := owner.Put(edge, fmt.Sprint(i), p); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if _, err := owner.Put(edge, "one", p); err != nil {
					b.Fatal(err)
				}
				owner.Cleanup("one")
			}
		})
	}
}
