package ringbuf_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// TestFill: no chunk ends where the buffer has no memory, Fill is not called for memory that exists,
// and if there is no more memory the ring goes on with what it has.
func TestFill(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const sizeBytes, step = 1 << 14, 1 << 10
		filled, most := uint64(0), uint64(rapid.IntRange(0, sizeBytes).Draw(t, "most"))
		r, err := ringbuf.New(make([]byte, sizeBytes), ringbuf.Options{Reuse: true, Fill: func(endBytes uint64) uint64 {
			if endBytes <= filled || endBytes > sizeBytes {
				t.Fatalf("Fill is called for %d bytes, %d have memory", endBytes, filled)
			}
			if to := min((endBytes+step-1)/step*step, sizeBytes); to <= most {
				filled = to
			}
			return filled
		}})
		if err != nil {
			t.Fatal(err)
		}
		var live []ringbuf.Chunk
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) {
				c, ok := r.Allocate(rapid.IntRange(1, 3000).Draw(t, "size"), 0)
				if !ok {
					return
				}
				if end := c.Addr + c.Size; end > filled {
					t.Fatalf("%v ends at %d, %d bytes have memory", c, end, filled)
				}
				live = append(live, c)
			},
			"release": func(t *rapid.T) {
				if len(live) == 0 {
					t.Skip("nothing is live")
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				if err := r.Release(live[i]); err != nil {
					t.Fatal(err)
				}
				live = append(live[:i], live[i+1:]...)
			},
			"": func(t *rapid.T) {
				if found := r.Check(); len(found) > 0 {
					t.Fatalf("%v", found)
				}
			},
		})
		for _, c := range live {
			if err := r.Release(c); err != nil {
				t.Fatal(err)
			}
		}
		if filled >= 2*step {
			if _, ok := r.Allocate(int(filled)-ringbuf.HeaderSize-ringbuf.DefaultAlign, 0); !ok {
				t.Fatalf("an empty ring with %d bytes of memory has no space for them", filled)
			}
		}
	})
}

func TestFillNeedsReuse(t *testing.T) {
	fill := func(endBytes uint64) uint64 { return endBytes }
	if _, err := ringbuf.New(make([]byte, 1<<10), ringbuf.Options{Fill: fill}); err == nil {
		t.Error("Fill without Reuse is accepted")
	}
}
