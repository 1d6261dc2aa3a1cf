package ringbuf_test

import (
	"bytes"
	"slices"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// failer has the common methods of *testing.T, *testing.F's T and *rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// modelChunk is a live chunk in the model.
type modelChunk struct {
	ringbuf.Chunk
	off, end uint64 // of the span, in the buffer
	content  []byte
}

// model keeps live chunks in a plain slice, oldest first, and computes
// everything else from all of them.
type model struct {
	lead, end, align uint64
	nextID           uint64
	live             []modelChunk
}

func newModel(sizeBytes int, opts ringbuf.Options) *model {
	m := &model{end: uint64(sizeBytes), align: uint64(opts.Align), nextID: 1}
	for (m.lead+ringbuf.HeaderSize)%m.align != 0 {
		m.lead++
	}
	return m
}

func (m *model) capacity() uint64 { return m.end - m.lead }

// pad returns the bytes that a chunk takes at a place in the buffer: whole
// multiples of the alignment, as far as the buffer goes.
func (m *model) pad(off, need uint64) uint64 {
	for need%m.align != 0 && off+need < m.end {
		need++
	}
	return need
}

// gaps returns begin and end of every gap, in address order.
func (m *model) gaps() [][2]uint64 {
	byAddr := slices.SortedFunc(slices.Values(m.live), func(a, b modelChunk) int { return int(a.off) - int(b.off) })
	var gaps [][2]uint64
	pos := m.lead
	for _, c := range append(byAddr, modelChunk{off: m.end}) {
		if c.off > pos {
			gaps = append(gaps, [2]uint64{pos, c.off})
		}
		pos = c.end
	}
	return gaps
}

// fits reports whether [off, off+need) is free.
func (m *model) fits(off, need uint64) bool {
	return slices.ContainsFunc(m.gaps(), func(g [2]uint64) bool { return g[0] <= off && off+need <= g[1] })
}

// largest returns the largest gap that may be used.
func (m *model) largest() uint64 {
	var largest uint64
	for _, g := range m.gaps() {
		largest = max(largest, g[1]-g[0])
	}
	return largest
}

// add records a chunk that the ring made, after checking it.
func (m *model) add(t failer, c ringbuf.Chunk, need uint64) *modelChunk {
	t.Helper()
	mc := modelChunk{Chunk: c, off: c.Addr - ringbuf.HeaderSize}
	mc.end = mc.off + m.pad(mc.off, need)
	if c.ID != m.nextID || c.Addr%m.align != 0 || !m.fits(mc.off, mc.end-mc.off) {
		t.Fatalf("%v: want id %d, alignment %d, and space between %v", c, m.nextID, m.align, m.gaps())
	}
	m.nextID++
	m.live = append(m.live, mc)
	return &m.live[len(m.live)-1]
}

func (m *model) remove(i int) { m.live = slices.Delete(m.live, i, i+1) }

// machine drives a ring and the model together and compares them.
type machine struct {
	r    *ringbuf.Ring
	buf  []byte
	m    *model
	gone []ringbuf.Chunk // some that are stale
}

func newMachine(t failer, sizeBytes int, opts ringbuf.Options) *machine {
	buf := make([]byte, sizeBytes)
	r, err := ringbuf.New(buf, opts)
	if err != nil {
		t.Fatalf("new ring of %d bytes with %+v: %v", sizeBytes, opts, err)
	}
	return &machine{r: r, buf: buf, m: newModel(sizeBytes, opts)}
}

func (x *machine) allocate(t failer, size int, tag uint32) {
	t.Helper()
	need := uint64(size) + ringbuf.HeaderSize
	fits := need <= x.m.largest()
	c, ok := x.r.Allocate(size, tag)
	switch {
	case ok != fits:
		t.Fatalf("allocate %d with gaps %v: %v, %t", size, x.m.gaps(), c, ok)
	case !ok:
	case c.Size != uint64(size) || c.Tag != tag:
		t.Fatalf("allocate %d bytes with tag %d: got %+v", size, tag, c)
	default:
		mc := x.m.add(t, c, need)
		payload := x.buf[c.Addr:][:c.Size]
		for i := range payload {
			payload[i] = byte(c.ID) + byte(i)*7
		}
		mc.content = bytes.Clone(payload)
	}
}

func (x *machine) release(t failer, i int) {
	t.Helper()
	c := x.m.live[i].Chunk
	if err := x.r.Release(c); err != nil {
		t.Fatalf("release a live chunk: %v", err)
	}
	x.m.remove(i)
	x.gone = append(x.gone, c)
}

// releaseAll frees the chunks with these indexes in the model, in this order. If the ring
// should refuse one, the last chunk is listed twice.
func (x *machine) releaseAll(t failer, places []int, stale bool) {
	t.Helper()
	var chunks []ringbuf.Chunk
	for _, i := range places {
		chunks = append(chunks, x.m.live[i].Chunk)
	}
	for _, c := range chunks {
		x.m.remove(slices.IndexFunc(x.m.live, func(m modelChunk) bool { return m.ID == c.ID }))
	}
	x.gone = append(x.gone, chunks...)
	given := chunks
	if stale && len(chunks) > 0 {
		given = append(slices.Clone(chunks), chunks[len(chunks)-1])
		if len(x.m.live) > 0 {
			given = append(given, x.m.live[0].Chunk) // not reached
		}
	}
	if err := x.r.ReleaseAll(given); (err != nil) != (len(given) > len(chunks)) {
		t.Fatalf("release %v, stale from the one at %d on: %v", given, len(chunks), err)
	}
}

// compare compares all figures of the ring with the model.
func (x *machine) compare(t failer) {
	t.Helper()
	if found := x.r.Check(); found != nil {
		t.Fatalf("broken invariants: %v", found)
	}
	var free uint64
	for _, g := range x.m.gaps() {
		free += g[1] - g[0]
	}
	want := ringbuf.Stats{
		CapacityBytes: x.m.capacity(), UsedBytes: x.m.capacity() - free, FreeBytes: free,
		LargestGapBytes: x.m.largest(), Chunks: len(x.m.live), NextID: x.m.nextID,
	}
	if got := x.r.Stats(); got != want {
		t.Fatalf("stats (-model +ring):\n%s", cmp.Diff(want, got))
	}
	x.compareChunks(t)
	for _, c := range x.gone[max(0, len(x.gone)-8):] {
		if err := x.r.Release(c); err == nil {
			t.Fatalf("the stale %v was released: %v", c, err)
		}
	}
}

// compareChunks walks by age and checks each payload.
func (x *machine) compareChunks(t failer) {
	t.Helper()
	c, ok := x.r.Oldest()
	for _, want := range x.m.live {
		if !ok || c != want.Chunk {
			t.Fatalf("age order: got %v %t, want %v", c, ok, want.Chunk)
		}
		if !bytes.Equal(x.buf[c.Addr:][:c.Size], want.content) {
			t.Fatalf("the content of %v is wrong", c)
		}
		c, ok = x.r.Next(c)
	}
	if ok {
		t.Fatalf("age order: %v after the youngest", c)
	}
	x.compareRuns(t)
}

// compareRuns walks by age in runs of three.
func (x *machine) compareRuns(t failer) {
	t.Helper()
	for i, first := range x.m.live {
		run := make([]ringbuf.Chunk, 3)
		run = run[:x.r.Run(first.Chunk, run)]
		want := x.m.live[i:min(i+3, len(x.m.live))]
		if !slices.EqualFunc(run, want, func(c ringbuf.Chunk, m modelChunk) bool { return c == m.Chunk }) {
			t.Fatalf("run from %v: got %v, want %d chunks", first.Chunk, run, len(want))
		}
	}
	for _, c := range x.gone[max(0, len(x.gone)-8):] {
		if n := x.r.Run(c, make([]ringbuf.Chunk, 3)); n != 0 {
			t.Fatalf("run from the stale %v: %d chunks", c, n)
		}
	}
}
