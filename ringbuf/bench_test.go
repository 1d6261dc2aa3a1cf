package ringbuf_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// plainRing is a minimal ring: a head that wraps, a header, and
// a count of bytes in use. It is the baseline of the benchmarks. It does not
// track single chunks, so it can release only the oldest.
type plainRing struct {
	buf        []byte
	head, used uint64
	id         uint64
}

func (p *plainRing) allocate(size uint64) (addr uint64, ok bool) {
	span := (size + ringbuf.HeaderSize + 63) &^ 63
	if uint64(len(p.buf))-p.head < span {
		p.head = 0
	}
	if p.used+span > uint64(len(p.buf)) {
		return 0, false
	}
	p.id++
	binary.LittleEndian.PutUint64(p.buf[p.head:], p.id)
	binary.LittleEndian.PutUint64(p.buf[p.head+8:], size)
	addr = p.head + ringbuf.HeaderSize
	p.head += span
	p.used += span
	return addr, true
}

func (p *plainRing) releaseOldest(size uint64) {
	p.used -= (size + ringbuf.HeaderSize + 63) &^ 63
}

// nsPerPlainPair times the baseline: one release and one allocation with half
// the ring in use.
func nsPerPlainPair(b *testing.B, buf []byte, size uint64, window int) float64 {
	p := &plainRing{buf: buf}
	for range window {
		if _, ok := p.allocate(size); !ok {
			b.Fatal("the window does not fit the plain ring")
		}
	}
	// The best of several short runs: a disturbance of the baseline would make the ring look faster.
	const runs, rounds = 16, 1 << 16
	best := time.Duration(math.MaxInt64)
	for range runs {
		begin := time.Now()
		for range rounds {
			p.releaseOldest(size)
			if _, ok := p.allocate(size); !ok {
				b.Fatal("the plain ring is full")
			}
		}
		best = min(best, time.Since(begin))
	}
	return float64(best.Nanoseconds()) / rounds
}

// withIslands returns a ring with this many live chunks spread evenly over it
// and all else free, and how many more chunks fit.
func withIslands(b *testing.B, buf []byte, size, islands int) (*ringbuf.Ring, int) {
	r, err := ringbuf.New(buf, ringbuf.Options{})
	if err != nil {
		b.Fatal(err)
	}
	var all []ringbuf.Chunk
	for {
		c, ok := r.Allocate(size, 0)
		if !ok {
			break
		}
		all = append(all, c)
	}
	every := len(all) + 1
	if islands > 0 {
		every = len(all) / islands
	}
	for i, c := range all {
		if (i+1)%every == 0 {
			continue
		}
		if err := r.Release(c); err != nil {
			b.Fatal(err)
		}
	}
	return r, len(all) - r.Stats().Chunks
}

// BenchmarkAllocateRelease keeps half of the free space in use, first in, first
// out, with islands that stay for ever in between.
func BenchmarkAllocateRelease(b *testing.B) {
	for _, size := range []int{64, 1 << 20} {
		for _, islands := range []int{0, 100, 1000} {
			b.Run(fmt.Sprintf("size=%d/islands=%d", size, islands), func(b *testing.B) {
				chunks := max(2*islands, 64)
				if size == 64 {
					chunks = 1 << 16
				}
				buf := make([]byte, chunks*(size+64)+64)
				r, room := withIslands(b, buf, size, islands)
				window := make([]ringbuf.Chunk, max(room/2, 1))
				for i := range window {
					window[i], _ = r.Allocate(size, 0)
				}
				cycle := func() {
					for i := range window {
						if err := r.Release(window[i]); err != nil {
							b.Fatal(err)
						}
						var ok bool
						if window[i], ok = r.Allocate(size, 0); !ok {
							b.Fatal("no space")
						}
					}
				}
				cycle() // grow the tables to their working size
				cycle()
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					if err := r.Release(window[i]); err != nil {
						b.Fatal(err)
					}
					var ok bool
					if window[i], ok = r.Allocate(size, 0); !ok {
						b.Fatal("no space")
					}
					if i++; i == len(window) {
						i = 0
					}
				}
				ours := float64(b.Elapsed().Nanoseconds()) / float64(b.N)
				b.ReportMetric(ours/nsPerPlainPair(b, buf, uint64(size), len(window)), "x-plain-ring")
			})
		}
	}
}

// BenchmarkFull asks a full ring for space, with as many gaps as
// islands.
func BenchmarkFull(b *testing.B) {
	const size = 1 << 10
	for _, islands := range []int{1, 100, 1000} {
		r, _ := withIslands(b, make([]byte, 4*islands*(size+64)), size, islands)
		// 3 chunks of size fit into every gap; ask for one of 3.5.
		const tooMuch = 3*size + size/2
		b.Run(fmt.Sprintf("islands=%d", islands), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := r.Allocate(tooMuch, 0); ok {
					b.Fatal("found space")
				}
			}
		})
	}
}

// BenchmarkAllocateReleaseLatest releases the chunk just allocated.
func BenchmarkAllocateReleaseLatest(b *testing.B) {
	r, err := ringbuf.New(make([]byte, 1<<20), ringbuf.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		c, ok := r.Allocate(64, 0)
		if !ok {
			b.Fatal("no space")
		}
		if err := r.Release(c); err != nil {
			b.Fatal(err)
		}
	}
}
