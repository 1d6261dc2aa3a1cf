package ringbuf_test

import (
	"errors"
	"math"
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
	c, err := r.Allocate(size, 0)
	if err != nil {
		t.Fatal(err)
	}
	return c
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
		want error
		text string
	}{
		{name: "negative alignment", size: 4096, opts: ringbuf.Options{Align: -64}, want: ringbuf.ErrAlign, text: "Align is -64"},
		{name: "no power of two", size: 4096, opts: ringbuf.Options{Align: 48}, want: ringbuf.ErrAlign, text: "Align is 48"},
		{name: "more than a page", size: 1 << 16, opts: ringbuf.Options{Align: 8192}, want: ringbuf.ErrAlign, text: "from 1 to 4096"},
		{name: "no buffer", size: 0, want: ringbuf.ErrBuffer, text: "0 bytes"},
		{name: "no room for a payload byte", size: 64, want: ringbuf.ErrBuffer, text: "needs 65"},
		{name: "header alone", size: 16, opts: ringbuf.Options{Align: 1}, want: ringbuf.ErrBuffer, text: "needs 17"},
		{name: "no byte, no header", size: 0, opts: ringbuf.Options{NoHeaders: true}, want: ringbuf.ErrBuffer, text: "needs 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ringbuf.New(make([]byte, tc.size), tc.opts)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got %v, want %v with %q", err, tc.want, tc.text)
			}
		})
	}
}

// TestBufferBounds knows the largest buffers without making one.
func TestBufferBounds(t *testing.T) {
	for _, tc := range []struct {
		name  string
		size  uint64
		align int
		bare  bool // without headers
		want  error
	}{
		{name: "3 GiB at 1", size: 3 << 30, align: 1},
		{name: "5 GiB at 1", size: 5 << 30, align: 1},
		{name: "3 GiB at 1, no headers", size: 3 << 30, align: 1, bare: true},
		{name: "5 GiB at 1, no headers", size: 5 << 30, align: 1, bare: true, want: ringbuf.ErrBuffer},
		{name: "200 GiB at 64", size: 200 << 30, align: 64},
		{name: "200 GiB at 64, no headers", size: 200 << 30, align: 64, bare: true},
		{name: "300 GiB at 64", size: 300 << 30, align: 64, want: ringbuf.ErrBuffer},
		{name: "300 GiB at 128", size: 300 << 30, align: 128},
		{name: "40 GiB at 1", size: 40 << 30, align: 1, want: ringbuf.ErrBuffer},
	} {
		t.Run(tc.name, func(t *testing.T) {
			opts := ringbuf.Options{Align: tc.align, NoHeaders: tc.bare}
			if err := ringbuf.CheckLayout(tc.size, opts); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

// TestLayout says where payloads stand and what they cost.
func TestLayout(t *testing.T) {
	for _, tc := range []struct {
		name  string
		size  int // of the buffer
		align int
		bare  bool // without headers
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
		{name: "no headers", size: 1024, bare: true, sizes: []int{64, 1, 65, 64}, addrs: []uint64{0, 64, 128, 256}, used: 320, free: 704},
		{name: "no headers, to the last byte", size: 100, bare: true, sizes: []int{64, 36}, addrs: []uint64{0, 64}, used: 100, free: 0},
		{name: "no headers, byte by byte", size: 6, align: 1, bare: true, sizes: []int{1, 2, 3}, addrs: []uint64{0, 1, 3}, used: 6, free: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := newRing(t, tc.size, ringbuf.Options{Align: tc.align, NoHeaders: tc.bare})
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
	for _, tc := range []struct {
		name string
		size int
		want error
		text string
	}{
		{name: "zero", size: 0, want: ringbuf.ErrSize, text: "allocate 0 bytes"},
		{name: "negative", size: math.MinInt, want: ringbuf.ErrSize, text: "must be positive"},
		{name: "one too large", size: 985, want: ringbuf.ErrTooLarge, text: "985 bytes: larger than the ring can ever hold, which is 984"},
		{name: "as large as can be", size: math.MaxInt, want: ringbuf.ErrTooLarge, text: "984"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := r.Allocate(tc.size, 0)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got %v, want %v with %q", err, tc.want, tc.text)
			}
			if c != (ringbuf.Chunk{}) {
				t.Errorf("a chunk besides the error: %v", c)
			}
		})
	}
	if got := allocate(t, r, r.MaxPayload()); got.ID != 1 || got.Size != 984 {
		t.Errorf("the largest payload is %v, want id 1 and 984 bytes; a refusal uses no id", got)
	}
}

func TestRoomErrorFigures(t *testing.T) {
	for _, tc := range []struct {
		name    string
		strict  bool
		release []int // of four chunks of 40 bytes that leave 8 of 168 bytes
		size    int
		want    ringbuf.RoomError
		hint    string
	}{
		{
			name: "full", size: 24, hint: "release or reclaim",
			want: ringbuf.RoomError{Needed: 40, LargestGap: 8, Free: 8, Capacity: 168},
		},
		{
			name: "in pieces", release: []int{0, 2}, size: 30, hint: "not in one piece",
			want: ringbuf.RoomError{Needed: 46, LargestGap: 40, Free: 88, Capacity: 168},
		},
		{
			name: "behind an unfree chunk", strict: true, release: []int{1, 2}, size: 24, hint: "oldest chunk must be released",
			want: ringbuf.RoomError{Needed: 40, LargestGap: 8, Free: 88, Capacity: 168, StrictFIFO: true},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := newRing(t, 168, ringbuf.Options{Align: 1, StrictFIFO: tc.strict})
			var chunks []ringbuf.Chunk
			for range 4 {
				chunks = append(chunks, allocate(t, r, 24))
			}
			for _, i := range tc.release {
				release(t, r, chunks[i])
			}
			before := r.Stats()
			_, err := r.Allocate(tc.size, 0)
			var got *ringbuf.RoomError
			if !errors.Is(err, ringbuf.ErrNoRoom) || !errors.As(err, &got) {
				t.Fatalf("got %v, want a *RoomError that is ErrNoRoom", err)
			}
			if diff := cmp.Diff(tc.want, *got); diff != "" {
				t.Errorf("figures (-want +got):\n%s", diff)
			}
			if !strings.Contains(err.Error(), tc.hint) {
				t.Errorf("%q does not say %q", err, tc.hint)
			}
			if diff := cmp.Diff(before, r.Stats()); diff != "" {
				t.Errorf("the failure changed the ring (-before +after):\n%s", diff)
			}
		})
	}
}

// TestStaleness uses names of chunks after their end.
func TestStaleness(t *testing.T) {
	r, _ := newRing(t, 1024, ringbuf.Options{})
	kept, gone := allocate(t, r, 10), allocate(t, r, 10)
	release(t, r, gone)

	mustAllBeStale := func(when string, c ringbuf.Chunk) {
		t.Helper()
		if err := r.Release(c); !errors.Is(err, ringbuf.ErrStale) {
			t.Errorf("%s: Release: %v, want ErrStale", when, err)
		}
		if b, err := r.Bytes(c); !errors.Is(err, ringbuf.ErrStale) || b != nil {
			t.Errorf("%s: Bytes: %v, want ErrStale", when, err)
		}
		if next, ok := r.Next(c); ok {
			t.Errorf("%s: Next: %v, want none", when, next)
		}
	}
	mustAllBeStale("released", gone)
	if _, _, err := r.AccessID(gone.Addr, gone.ID); !errors.Is(err, ringbuf.ErrUnknownAddress) {
		t.Errorf("AccessID of free room: %v, want ErrUnknownAddress", err)
	}

	reused := allocate(t, r, 10)
	if reused.Addr != gone.Addr {
		t.Fatalf("the test wants the address reused, got %v after %v", reused, gone)
	}
	mustAllBeStale("reused", gone)
	if _, _, err := r.AccessID(gone.Addr, gone.ID); !errors.Is(err, ringbuf.ErrStale) {
		t.Errorf("AccessID of another chunk: %v, want ErrStale", err)
	}
	mustAllBeStale("never made", ringbuf.Chunk{})
	release(t, r, reused)
	mustAllBeStale("no id where a chunk was", ringbuf.Chunk{Addr: gone.Addr})
	reused = allocate(t, r, 10)
	mustAllBeStale("beside its address", ringbuf.Chunk{ID: reused.ID, Addr: reused.Addr + 1})
	mustAllBeStale("from the future", ringbuf.Chunk{ID: 99, Addr: kept.Addr})
	mustAllBeStale("at no address", ringbuf.Chunk{ID: kept.ID, Addr: math.MaxUint64})

	r.Clear()
	mustAllBeStale("cleared", kept)
	if again := allocate(t, r, 10); again.ID != 5 {
		t.Errorf("after Clear the id is %d, want 5: ids are never reused", again.ID)
	}
	mustAllBeStale("cleared and reused", kept)
	mustBeSound(t, r)
}

func TestAccess(t *testing.T) {
	r, buf := newRing(t, 4096, ringbuf.Options{})
	c, err := r.Allocate(100, 7)
	if err != nil {
		t.Fatal(err)
	}
	want := ringbuf.Chunk{ID: 1, Addr: 64, Size: 100, Tag: 7}
	if c != want {
		t.Errorf("allocated %+v, want %+v", c, want)
	}
	copy(buf[c.Addr:], "payload")

	got, payload, err := r.Access(c.Addr)
	if err != nil || got != c || string(payload[:7]) != "payload" || len(payload) != 100 || cap(payload) != 100 {
		t.Errorf("Access: %+v, %d bytes of %d, %v", got, len(payload), cap(payload), err)
	}
	got, payload, err = r.AccessID(c.Addr, c.ID)
	if err != nil || got != c || len(payload) != 100 {
		t.Errorf("AccessID: %+v, %d bytes, %v", got, len(payload), err)
	}
	if payload, err = r.Bytes(c); err != nil || len(payload) != 100 || cap(payload) != 100 {
		t.Errorf("Bytes: %d bytes of %d, %v", len(payload), cap(payload), err)
	}

	// Every other address is unknown: inside the header, inside the payload,
	// in a gap, outside the buffer.
	for addr := range uint64(len(buf) + 64) {
		if _, _, err := r.Access(addr); addr != c.Addr && !errors.Is(err, ringbuf.ErrUnknownAddress) {
			t.Errorf("Access(%d): %v, want ErrUnknownAddress", addr, err)
		}
	}
	if _, _, err := r.Access(math.MaxUint64); !errors.Is(err, ringbuf.ErrUnknownAddress) {
		t.Errorf("Access of the last address there is: %v, want ErrUnknownAddress", err)
	}
}

// TestWriterBelievesNoByte wipes the buffer: only Check notices.
func TestWriterBelievesNoByte(t *testing.T) {
	r, buf := newRing(t, 4096, ringbuf.Options{})
	chunks := []ringbuf.Chunk{allocate(t, r, 100), allocate(t, r, 200), allocate(t, r, 300)}
	for i := range buf {
		buf[i] = 0xff
	}
	if found := r.Check(); len(found) != len(chunks) || found[0].Invariant != ringbuf.InvariantHeader {
		t.Errorf("Check found %v, want a header mismatch for each chunk", found)
	}
	for _, c := range chunks {
		if got, payload, err := r.Access(c.Addr); err != nil || got != c || uint64(len(payload)) != c.Size {
			t.Errorf("Access(%d): %v, %d bytes, %v", c.Addr, got, len(payload), err)
		}
	}
	release(t, r, chunks...)
	mustBeSound(t, r)
	if s := r.Stats(); s.FreeBytes != s.CapacityBytes || s.LargestGapBytes != s.CapacityBytes {
		t.Errorf("not all free again: %+v", s)
	}
}

// TestIslandBlocksNothing keeps one chunk for ever and runs a hundred rounds
// of traffic past it.
func TestIslandBlocksNothing(t *testing.T) {
	r, _ := newRing(t, 64*100, ringbuf.Options{})
	allocate(t, r, 40)
	island := allocate(t, r, 40)
	if _, err := r.Bytes(island); err != nil {
		t.Fatal(err)
	}
	for round := range 100 {
		for {
			if _, err := r.Allocate(40, 0); err != nil {
				break
			}
		}
		if s := r.Stats(); s.FreeBytes >= 64 {
			t.Fatalf("round %d: the ring says full with %d bytes free", round, s.FreeBytes)
		}
		r.Reclaim(func(c ringbuf.Chunk, _ []byte) bool { return c != island }, 0)
		mustBeSound(t, r)
	}
	if _, err := r.Bytes(island); err != nil {
		t.Errorf("the island is gone: %v", err)
	}
}

// TestStrictIslandBlocks is the same with a plain ring, which stops.
func TestStrictIslandBlocks(t *testing.T) {
	r, _ := newRing(t, 64*100, ringbuf.Options{StrictFIFO: true})
	island := allocate(t, r, 40)
	younger := allocate(t, r, 40)
	for {
		if _, err := r.Allocate(40, 0); err != nil {
			break
		}
	}
	full := r.Stats().Chunks
	if freed := r.Reclaim(func(c ringbuf.Chunk, _ []byte) bool { return c != island }, 0); freed != nil {
		t.Errorf("Reclaim passed over the oldest and released %v", freed)
	}
	release(t, r, younger)
	if c, err := r.Allocate(40, 0); !errors.Is(err, ringbuf.ErrNoRoom) {
		t.Errorf("room behind an unfree chunk was used: %v, %v", c, err)
	}
	release(t, r, island)
	for range 2 { // the island and the one behind it
		allocate(t, r, 40)
	}
	if got := r.Stats().Chunks; got != full {
		t.Errorf("%d chunks after the island went, want %d again", got, full)
	}
	mustBeSound(t, r)
}

// TestStrictEmptyRingHoldsItsLargest: a ring that ran empty in the middle of
// the buffer still has room for everything Allocate does not call too large.
func TestStrictEmptyRingHoldsItsLargest(t *testing.T) {
	r, _ := newRing(t, 1000, ringbuf.Options{Align: 1, StrictFIFO: true})
	release(t, r, allocate(t, r, 500))
	if s := r.Stats(); s.LargestGapBytes != 1000 {
		t.Errorf("an empty ring has room for %d, want 1000", s.LargestGapBytes)
	}
	release(t, r, allocate(t, r, r.MaxPayload()))
	mustBeSound(t, r)
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

func TestReclaim(t *testing.T) {
	// Six chunks of 48 bytes at the default alignment: 64 bytes each.
	for _, tc := range []struct {
		name   string
		strict bool
		busy   uint64 // the id that is not free
		target int
		freed  []uint64
		asked  []uint64
	}{
		{name: "all", target: 0, freed: []uint64{1, 2, 3, 4, 5, 6}, asked: []uint64{1, 2, 3, 4, 5, 6}},
		{name: "negative target", target: -1, freed: []uint64{1, 2, 3, 4, 5, 6}, asked: []uint64{1, 2, 3, 4, 5, 6}},
		{name: "lazily", target: 1, freed: []uint64{1}, asked: []uint64{1}},
		{name: "exactly", target: 128, freed: []uint64{1, 2}, asked: []uint64{1, 2}},
		{name: "one byte more", target: 129, freed: []uint64{1, 2, 3}, asked: []uint64{1, 2, 3}},
		{name: "more than there is", target: 1 << 30, freed: []uint64{1, 2, 3, 4, 5, 6}, asked: []uint64{1, 2, 3, 4, 5, 6}},
		{name: "past a busy one", busy: 2, target: 128, freed: []uint64{1, 3}, asked: []uint64{1, 2, 3}},
		{name: "strict stops at a busy one", strict: true, busy: 2, target: 128, freed: []uint64{1}, asked: []uint64{1, 2}},
		{name: "strict and busy at once", strict: true, busy: 1, target: 0, asked: []uint64{1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, _ := newRing(t, 1024, ringbuf.Options{StrictFIFO: tc.strict})
			for i := range 6 {
				c := allocate(t, r, 48)
				b, err := r.Bytes(c)
				if err != nil {
					t.Fatal(err)
				}
				b[0] = byte(i + 1)
			}
			var asked []uint64
			freed := r.Reclaim(func(c ringbuf.Chunk, payload []byte) bool {
				asked = append(asked, c.ID)
				if payload[0] != byte(c.ID) || len(payload) != 48 {
					t.Errorf("chunk %d came with the payload of %d", c.ID, payload[0])
				}
				return c.ID != tc.busy
			}, tc.target)
			if diff := cmp.Diff(tc.freed, freed); diff != "" {
				t.Errorf("freed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.asked, asked); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
			mustBeSound(t, r)
		})
	}
}

// TestReclaimCallbackMisuse: releasing the chunk in question panics, working
// on others does not.
func TestReclaimCallbackMisuse(t *testing.T) {
	mustPanic := func(name string, misuse func(*ringbuf.Ring, ringbuf.Chunk)) {
		t.Run(name, func(t *testing.T) {
			r, _ := newRing(t, 1024, ringbuf.Options{})
			allocate(t, r, 48)
			defer func() {
				if text, _ := recover().(string); !strings.Contains(text, "isFree released chunk 1") {
					t.Errorf("the panic says %q", text)
				}
			}()
			r.Reclaim(func(c ringbuf.Chunk, _ []byte) bool { misuse(r, c); return true }, 0)
		})
	}
	mustPanic("release", func(r *ringbuf.Ring, c ringbuf.Chunk) { _ = r.Release(c) })
	mustPanic("clear", func(r *ringbuf.Ring, _ ringbuf.Chunk) { r.Clear() })

	r, _ := newRing(t, 1024, ringbuf.Options{})
	allocate(t, r, 48)
	second := allocate(t, r, 48)
	allocate(t, r, 48)
	freed := r.Reclaim(func(c ringbuf.Chunk, _ []byte) bool {
		if c.ID == 1 {
			release(t, r, second)
			allocate(t, r, 48)
		}
		return true
	}, 0)
	if diff := cmp.Diff([]uint64{1, 3, 4}, freed); diff != "" {
		t.Errorf("freed (-want +got):\n%s", diff)
	}
	mustBeSound(t, r)
}

// TestCompleteSearch hides the one gap that fits behind many of its bin that
// do not, which is more than a search looks at when it has a choice.
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

// TestSmallGapFirst: where both a small and a large gap fit, the large one
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

// TestSteadyStateAllocatesNothing: the tables grow once.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for _, strict := range []bool{false, true} {
		r, _ := newRing(t, 1<<16, ringbuf.Options{StrictFIFO: strict})
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
			t.Errorf("strict %t: %v memory allocations a round, want 0", strict, n)
		}
	}
}

func TestView(t *testing.T) {
	r, buf := newRing(t, 1024, ringbuf.Options{})
	c := allocate(t, r, 100)
	copy(buf[c.Addr:], "payload")
	header := func(at int, b byte) func([]byte) { return func(buf []byte) { buf[int(c.Addr)+at] = b } }
	hugeSize := func(buf []byte) { copy(buf[c.Addr-8:c.Addr], "\xff\xff\xff\xff\xff\xff\xff\xff") }
	for _, tc := range []struct {
		name     string
		damage   func([]byte)
		addr, id uint64
		want     error
	}{
		{name: "sound", addr: c.Addr, id: c.ID},
		{name: "another id", addr: c.Addr, id: 2, want: ringbuf.ErrStale},
		{name: "no id", addr: c.Addr + 500, id: 0, want: ringbuf.ErrStale},
		{name: "before any header", addr: 15, id: 1, want: ringbuf.ErrUnknownAddress},
		{name: "end of the buffer", addr: 1024, id: 1, want: ringbuf.ErrUnknownAddress},
		{name: "last address there is", addr: math.MaxUint64, id: 1, want: ringbuf.ErrUnknownAddress},
		{name: "damaged id", damage: header(-16, 9), addr: c.Addr, id: c.ID, want: ringbuf.ErrStale},
		{name: "size zero", damage: header(-8, 0), addr: c.Addr, id: c.ID, want: ringbuf.ErrHeader},
		{name: "size beyond the buffer", damage: header(-6, 1), addr: c.Addr, id: c.ID, want: ringbuf.ErrHeader},
		{name: "size overflows", damage: hugeSize, addr: c.Addr, id: c.ID, want: ringbuf.ErrHeader},
	} {
		t.Run(tc.name, func(t *testing.T) {
			damaged := append([]byte(nil), buf...)
			if tc.damage != nil {
				tc.damage(damaged)
			}
			got, err := ringbuf.View(damaged, tc.addr, tc.id)
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil && (string(got[:7]) != "payload" || len(got) != 100 || cap(got) != 100) {
				t.Errorf("got %d bytes of %d: %q", len(got), cap(got), got[:7])
			}
		})
	}
}

// TestReuse: with the option, the room that came free last is used again, also behind
// a chunk that stays, and large gaps stay large.
func TestReuse(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		r, _ := newRing(t, 64*100, ringbuf.Options{Reuse: reuse})
		allocate := func(size int) ringbuf.Chunk {
			t.Helper()
			c, err := r.Allocate(size, 0)
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first, second := allocate(100), allocate(300)
		staying := allocate(100)
		for _, c := range []ringbuf.Chunk{second, first} {
			if err := r.Release(c); err != nil {
				t.Fatal(err)
			}
			if again := allocate(int(c.Size)); (again.Addr == c.Addr) != reuse {
				t.Errorf("reuse %v: %v after %v was released, beside %v", reuse, again, c, staying)
			}
		}
	}
}
