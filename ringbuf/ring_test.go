package ringbuf_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

func newRing(t testing.TB, sizeBytes int, opts ringbuf.Options) (*ringbuf.Ring, []byte) {
	t.Helper()
	buf := make([]byte, sizeBytes)
	r, err := ringbuf.New(buf, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r, buf
}

func allocate(t testing.TB, r *ringbuf.Ring, size int) ringbuf.Chunk {
	t.Helper()
	c, ok := r.Allocate(size, 0)
	if !ok {
		t.Fatalf("no space for %d bytes: %+v", size, r.Stats())
	}
	return c
}

func mustBeSound(t testing.TB, r *ringbuf.Ring) {
	t.Helper()
	for _, v := range r.Check() {
		t.Errorf("broken invariant: %v", v)
	}
}

func release(t testing.TB, r *ringbuf.Ring, chunks ...ringbuf.Chunk) {
	t.Helper()
	for _, c := range chunks {
		if err := r.Release(c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		size int
		opts ringbuf.Options
		text string
	}{
		{name: "negative alignment", size: 4096, opts: ringbuf.Options{Align: -64}, text: "Align is -64"},
		{name: "no power of two", size: 4096, opts: ringbuf.Options{Align: 48}, text: "Align is 48"},
		{name: "more than a page", size: 1 << 16, opts: ringbuf.Options{Align: 8192}, text: "from 1 to 4096"},
		{name: "no buffer", size: 0, text: "0 bytes"},
		{name: "no room for a payload byte", size: 64, text: "needs 65"},
		{name: "header alone", size: 16, opts: ringbuf.Options{Align: 1}, text: "needs 17"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ringbuf.New(make([]byte, tc.size), tc.opts)
			if err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got %v, want an error with %q", err, tc.text)
			}
		})
	}
}

// TestLayout checks the addresses of payloads and the bytes that they take.
func TestLayout(t *testing.T) {
	for _, tc := range []struct {
		name  string
		size  int // of the buffer
		align int
		sizes []int
		addrs []uint64
		used  uint64
		free  uint64
	}{
		{name: "default alignment", size: 1024, sizes: []int{64, 64, 64}, addrs: []uint64{64, 192, 320}, used: 384, free: 592},
		{name: "header in the padding", size: 1024, align: 64, sizes: []int{48, 48, 49, 1}, addrs: []uint64{64, 128, 192, 320}, used: 320, free: 656},
		{name: "a 64-byte payload in 128 bytes", size: 128, align: 64, sizes: []int{64}, addrs: []uint64{64}, used: 80, free: 0},
		{name: "byte by byte", size: 100, align: 1, sizes: []int{1, 2, 3}, addrs: []uint64{16, 33, 51}, used: 54, free: 46},
		{name: "header's own alignment", size: 100, align: 16, sizes: []int{1, 16, 17}, addrs: []uint64{16, 48, 80}, used: 100, free: 0},
		{name: "pages", size: 3 * 4096, align: 4096, sizes: []int{4080, 4096}, addrs: []uint64{4096, 8192}, used: 8208, free: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := newRing(t, tc.size, ringbuf.Options{Align: tc.align})
			var addrs []uint64
			for _, size := range tc.sizes {
				addrs = append(addrs, allocate(t, r, size).Addr)
			}
			if diff := cmp.Diff(tc.addrs, addrs); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if s := r.Stats(); s.UsedBytes != tc.used || s.FreeBytes != tc.free || s.CapacityBytes != tc.used+tc.free {
				t.Errorf("stats %+v, want used %d and free %d", s, tc.used, tc.free)
			}
			mustBeSound(t, r)
		})
	}
}

func TestAllocateRefuses(t *testing.T) {
	r, _ := newRing(t, 1000, ringbuf.Options{Align: 1})
	for _, size := range []int{0, -1, math.MinInt, 985, math.MaxInt} {
		if c, ok := r.Allocate(size, 0); ok || c != (ringbuf.Chunk{}) {
			t.Errorf("%d bytes: %v, %t", size, c, ok)
		}
	}
	if got := allocate(t, r, 984); got.ID != 1 || got.Size != 984 {
		t.Errorf("the largest payload is %v, want id 1 and 984 bytes; a refusal uses no id", got)
	}
}

// TestStaleness uses chunks after their release.
func TestStaleness(t *testing.T) {
	r, _ := newRing(t, 1024, ringbuf.Options{})
	kept, gone := allocate(t, r, 10), allocate(t, r, 10)
	release(t, r, gone)

	mustAllBeStale := func(when string, c ringbuf.Chunk) {
		t.Helper()
		if err := r.Release(c); err == nil {
			t.Errorf("%s: a stale chunk was released", when)
		}
		if next, ok := r.Next(c); ok {
			t.Errorf("%s: Next: %v, want none", when, next)
		}
	}
	mustAllBeStale("released", gone)

	reused := allocate(t, r, 10)
	if reused.Addr != gone.Addr {
		t.Fatalf("the test wants the address reused, got %v after %v", reused, gone)
	}
	mustAllBeStale("reused", gone)
	mustAllBeStale("never made", ringbuf.Chunk{})
	release(t, r, reused)
	mustAllBeStale("no id where a chunk was", ringbuf.Chunk{Addr: gone.Addr})
	reused = allocate(t, r, 10)
	mustAllBeStale("beside its address", ringbuf.Chunk{ID: reused.ID, Addr: reused.Addr + 1})
	mustAllBeStale("from the future", ringbuf.Chunk{ID: 99, Addr: kept.Addr})
	mustAllBeStale("at no address", ringbuf.Chunk{ID: kept.ID, Addr: math.MaxUint64})

	mustBeSound(t, r)
}

// TestWriterReadsNoHeader wipes the buffer: only Check finds that.
func TestWriterReadsNoHeader(t *testing.T) {
	r, buf := newRing(t, 4096, ringbuf.Options{})
	chunks := []ringbuf.Chunk{allocate(t, r, 100), allocate(t, r, 200), allocate(t, r, 300)}
	for i := range buf {
		buf[i] = 0xff
	}
	if found := r.Check(); len(found) != len(chunks) || found[0].Invariant != ringbuf.InvariantHeader {
		t.Errorf("Check found %v, want a header mismatch for each chunk", found)
	}
	for _, c := range chunks {
		if run := make([]ringbuf.Chunk, 1); r.Run(c, run) != 1 || run[0] != c {
			t.Errorf("%v is known as %v", c, run)
		}
	}
	release(t, r, chunks...)
	mustBeSound(t, r)
	if s := r.Stats(); s.FreeBytes != s.CapacityBytes || s.LargestGapBytes != s.CapacityBytes {
		t.Errorf("not all free again: %+v", s)
	}
}

// TestLongLivedChunkBlocksNothing keeps one chunk for ever and runs a hundred rounds
// of traffic past it.
func TestLongLivedChunkBlocksNothing(t *testing.T) {
	r, _ := newRing(t, 64*100, ringbuf.Options{})
	allocate(t, r, 40)
	island := allocate(t, r, 40)
	for round := range 100 {
		for ok := true; ok; {
			_, ok = r.Allocate(40, 0)
		}
		if s := r.Stats(); s.FreeBytes >= 64 {
			t.Fatalf("round %d: the ring says full with %d bytes free", round, s.FreeBytes)
		}
		chunks := make([]ringbuf.Chunk, r.Stats().Chunks)
		oldest, _ := r.Oldest()
		r.Run(oldest, chunks)
		release(t, r, slices.DeleteFunc(chunks, func(c ringbuf.Chunk) bool { return c == island })...)
		mustBeSound(t, r)
	}
	release(t, r, island)
}

func TestAgeOrder(t *testing.T) {
	r, _ := newRing(t, 4096, ringbuf.Options{})
	if c, ok := r.Oldest(); ok {
		t.Errorf("the oldest of none is %v", c)
	}
	var chunks []ringbuf.Chunk
	for range 6 {
		chunks = append(chunks, allocate(t, r, 50))
	}
	release(t, r, chunks[2], chunks[0], chunks[4])
	chunks = append([]ringbuf.Chunk{chunks[1], chunks[3], chunks[5]}, allocate(t, r, 50))
	var walked []ringbuf.Chunk
	for c, ok := r.Oldest(); ok; c, ok = r.Next(c) {
		walked = append(walked, c)
	}
	if diff := cmp.Diff(chunks, walked); diff != "" {
		t.Errorf("age order (-want +got):\n%s", diff)
	}
}

// TestCompleteSearch hides the one gap that fits behind many in its bin that
// do not, more than a search probes while a larger bin has a gap.
func TestCompleteSearch(t *testing.T) {
	r, _ := newRing(t, 1<<16, ringbuf.Options{Align: 1})
	const small, large = 2000 - ringbuf.HeaderSize, 2040 - ringbuf.HeaderSize
	var gaps []ringbuf.Chunk
	for i := range 20 {
		size := small
		if i == 0 {
			size = large
		}
		gaps = append(gaps, allocate(t, r, size))
		allocate(t, r, 1)
	}
	const rest = 100 // stays the current gap
	allocate(t, r, int(r.Stats().LargestGapBytes)-ringbuf.HeaderSize-rest)
	release(t, r, gaps...) // the large one first: last in its bin
	if got := allocate(t, r, large); got.Addr != gaps[0].Addr {
		t.Errorf("found %v, want the gap at %d", got, gaps[0].Addr)
	}
	mustBeSound(t, r)
}

// TestSmallGapFirst: if both a small and a large gap fit, the large one
// stays whole.
func TestSmallGapFirst(t *testing.T) {
	r, _ := newRing(t, 1<<16, ringbuf.Options{Align: 1})
	var gaps []ringbuf.Chunk
	for _, size := range []int{100, 10000} {
		gaps = append(gaps, allocate(t, r, size))
		allocate(t, r, 1)
	}
	allocate(t, r, int(r.Stats().LargestGapBytes)-ringbuf.HeaderSize-20)
	release(t, r, gaps...)
	if got := allocate(t, r, 90); got.Addr != gaps[0].Addr {
		t.Errorf("got %v, want the small gap at %d", got, gaps[0].Addr)
	}
	if got := allocate(t, r, 10000); got.Addr != gaps[1].Addr {
		t.Errorf("got %v, want the large gap at %d", got, gaps[1].Addr)
	}
}

// TestSteadyStateAllocatesNothing: after the tables have grown, a ring allocates no memory.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		r, _ := newRing(t, 1<<16, ringbuf.Options{Reuse: reuse})
		window := make([]ringbuf.Chunk, 100)
		round := func() {
			for i := range window {
				if window[i].ID != 0 {
					release(t, r, window[i])
				}
				window[i] = allocate(t, r, 100)
			}
		}
		for range 20 { // more than once round the buffer
			round()
		}
		if n := testing.AllocsPerRun(20, round); n != 0 {
			t.Errorf("reuse %t: %v memory allocations a round, want 0", reuse, n)
		}
	}
}

// TestReuse: with the option, the space freed last is used again, also behind
// a chunk that stays, and large gaps stay large.
func TestReuse(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		r, _ := newRing(t, 64*100, ringbuf.Options{Reuse: reuse})
		first, second := allocate(t, r, 100), allocate(t, r, 300)
		staying := allocate(t, r, 100)
		for _, c := range []ringbuf.Chunk{second, first} {
			if err := r.Release(c); err != nil {
				t.Fatal(err)
			}
			if again := allocate(t, r, int(c.Size)); (again.Addr == c.Addr) != reuse {
				t.Errorf("reuse %v: %v after %v was released, beside %v", reuse, again, c, staying)
			}
		}
	}
}
