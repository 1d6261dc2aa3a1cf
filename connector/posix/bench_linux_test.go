package posix_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector/posix"
)

func BenchmarkPutGet(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			opts := posix.Options{Name: fmt.Sprintf("bench-%d", os.Getpid())}
			creator, err := posix.New(opts)
			if err != nil {
				b.Fatal(err)
			}
			defer creator.Close()
			getter, err := posix.New(opts)
			if err != nil {
				b.Fatal(err)
			}
			defer getter.Close()
			value := make([]byte, size)
			putGet := func() {
				meta, err := tryPut(b.Context(), creator, "key", value)
				if err != nil {
					b.Fatal(err)
				}
				payload, err := getter.Get(b.Context(), edge, "key", meta)
				if err != nil {
					b.Fatal(err)
				}
				payload.Release()
			}
			putGet() // makes the store
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				putGet()
			}
		})
	}
}
