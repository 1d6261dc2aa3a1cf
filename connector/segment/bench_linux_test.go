package segment_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector/segment"
)

func BenchmarkPutGet(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			writer, err := segment.New(segment.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer writer.Close()
			reader, err := segment.New(segment.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer reader.Close()
			value := make([]byte, size)
			fill := func(dst []byte) error { copy(dst, value); return nil }
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				key := "omnibus-bench-" + strconv.Itoa(n)
				meta, err := writer.Put(b.Context(), edge, key, size, fill)
				if err != nil {
					b.Fatal(err)
				}
				payload, err := reader.Get(b.Context(), edge, key, meta)
				if err != nil {
					b.Fatal(err)
				}
				payload.Release()
			}
		})
	}
}
