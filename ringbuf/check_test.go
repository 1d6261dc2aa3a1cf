package ringbuf

import (
	"slices"
	"testing"
)

// mixedRing has, in address order: chunk, gap, chunk, gap, two chunks, and the
// current gap; and a spare record.
func mixedRing(t *testing.T) (*Ring, []Chunk) {
	t.Helper()
	r, err := New(make([]byte, 4096), Options{})
	if err != nil {
		t.Fatal(err)
	}
	var chunks []Chunk
	for i := range 7 {
		c, ok := r.Allocate(100+i, 0)
		if !ok {
			t.Fatal("no space")
		}
		chunks = append(chunks, c)
	}
	for _, i := range []int{4, 3, 1} {
		if err := r.Release(chunks[i]); err != nil {
			t.Fatal(err)
		}
	}
	if found := r.Check(); found != nil {
		t.Fatalf("broken before the test broke it: %v", found)
	}
	return r, []Chunk{chunks[0], chunks[2], chunks[5], chunks[6]}
}

// parked returns a gap in a bin.
func parked(r *Ring) uint32 {
	for _, head := range r.bins.heads {
		if head != none {
			return head
		}
	}
	panic("no gap waits in a bin")
}

// TestCheckNames breaks one invariant at a time and wants its name. If one
// broken field necessarily breaks a second invariant, the other name is listed.
func TestCheckNames(t *testing.T) {
	for _, tc := range []struct {
		name    string
		want    string
		also    []string
		corrupt func(r *Ring, live []Chunk)
	}{
		{
			name: "chunk reaches into the next", want: InvariantOverlap, also: []string{InvariantPayload},
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[2])].span += 64 },
		},
		{
			name: "last gap reaches beyond the buffer", want: InvariantOverlap, also: []string{InvariantFreeCount},
			corrupt: func(r *Ring, _ []Chunk) { r.recs[r.current].span += 64 },
		},
		{
			name: "gap too short", want: InvariantLostBytes, also: []string{InvariantFreeCount},
			corrupt: func(r *Ring, _ []Chunk) { r.recs[r.current].span -= 64 },
		},
		{
			name: "gap not joined", want: InvariantAdjacentGaps,
			corrupt: func(r *Ring, _ []Chunk) {
				ref := r.takeRecord()
				g := &r.recs[r.current]
				r.recs[ref] = record{kind: gapSpan, off: g.off + 64, span: g.span - 64}
				g.span = 64
				r.recs.linkBefore(g.right, ref)
				r.addGap(ref)
			},
		},
		{
			name: "link to the left", want: InvariantNeighbours,
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].left = r.lookup(live[2]) },
		},
		{
			name: "link to the right out of the table", want: InvariantNeighbours, also: []string{InvariantRecords},
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].right = 1 << 30 },
		},
		{
			name: "links in a circle", want: InvariantNeighbours, also: []string{InvariantRecords, InvariantOverlap},
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].right = r.lookup(live[0]) },
		},
		{
			name: "end of the list", want: InvariantNeighbours,
			corrupt: func(r *Ring, live []Chunk) { r.recs[none].left = r.lookup(live[0]) },
		},
		{
			name: "span off the grid", want: InvariantAlignment,
			also:    []string{InvariantOverlap, InvariantLostBytes, InvariantHeader, InvariantAddressIndex, InvariantPayload},
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].off += 8 },
		},
		{
			name: "payload longer than its span", want: InvariantPayload,
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].size = 4000 },
		},
		{
			name: "payload empty", want: InvariantPayload,
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].size = 0 },
		},
		{
			name: "span wider than padding explains", want: InvariantPayload,
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].size = 8 },
		},
		{
			name: "header id in the buffer", want: InvariantHeader,
			corrupt: func(r *Ring, live []Chunk) { r.buf[live[1].Addr-16] ^= 1 },
		},
		{
			name: "header size in the buffer", want: InvariantHeader,
			corrupt: func(r *Ring, live []Chunk) { r.buf[live[1].Addr-1] ^= 0x80 },
		},
		{
			name: "index", want: InvariantAddressIndex,
			corrupt: func(r *Ring, live []Chunk) { r.index.put(live[1].Addr, r.lookup(live[0])) },
		},
		{
			name: "link to the older", want: InvariantAgeLinks,
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[2])].prev = r.lookup(live[0]) },
		},
		{
			name: "link to the younger leads to a gap", want: InvariantAgeLinks,
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[1])].next = r.current },
		},
		{
			name: "chunk left out by age", want: InvariantAgeLinks,
			corrupt: func(r *Ring, live []Chunk) { r.recs.unlinkAge(r.lookup(live[1])) },
		},
		{
			name: "ages in a circle", want: InvariantAgeLinks, also: []string{InvariantIDOrder},
			corrupt: func(r *Ring, live []Chunk) { r.recs[r.lookup(live[3])].next = r.lookup(live[0]) },
		},
		{
			name: "end of the age list", want: InvariantAgeLinks,
			corrupt: func(r *Ring, live []Chunk) { r.recs[none].prev = r.lookup(live[0]) },
		},
		{
			name: "ids out of order", want: InvariantIDOrder,
			corrupt: func(r *Ring, live []Chunk) {
				ref := r.lookup(live[0])
				r.recs.unlinkAge(ref)
				r.recs.linkYoungest(ref)
			},
		},
		{
			name: "id not given out", want: InvariantIDOrder,
			corrupt: func(r *Ring, live []Chunk) { r.nextID = live[3].ID },
		},
		{
			name: "count of chunks", want: InvariantChunkCount, also: []string{InvariantAgeLinks},
			corrupt: func(r *Ring, _ []Chunk) { r.live++ },
		},
		{
			name: "count of free bytes", want: InvariantFreeCount,
			corrupt: func(r *Ring, _ []Chunk) { r.free -= 64 },
		},
		{
			name: "gap in no bin", want: InvariantGapList,
			corrupt: func(r *Ring, _ []Chunk) { r.removeFromBin(parked(r)) },
		},
		{
			name: "gap in a bin and current", want: InvariantGapList,
			corrupt: func(r *Ring, _ []Chunk) { r.addToBin(r.current) },
		},
		{
			name: "gap's link back in its bin", want: InvariantGapList,
			corrupt: func(r *Ring, _ []Chunk) { r.recs[parked(r)].prev = r.current },
		},
		{
			name: "chunk in a bin", want: InvariantGapList,
			corrupt: func(r *Ring, live []Chunk) { r.recs[parked(r)].next = r.lookup(live[0]) },
		},
		{
			name: "gap in another bin", want: InvariantBinMembership,
			corrupt: func(r *Ring, _ []Chunk) {
				gap := parked(r)
				b := r.binOf(r.recs[gap].span)
				r.bins.heads[b], r.bins.heads[b+5] = r.recs[gap].next, gap
				r.recs[gap].next = none
				r.bins.nonEmpty |= 1 << (b + 5)
				r.bins.bound[b+5] = r.recs[gap].span
				if r.bins.heads[b] == none {
					r.bins.nonEmpty &^= 1 << b
				}
			},
		},
		{
			name: "gap larger than its bin's bound", want: InvariantBinBound,
			corrupt: func(r *Ring, _ []Chunk) { r.bins.bound = [64]uint64{} },
		},
		{
			name: "bin in use not in the map", want: InvariantBinMap,
			corrupt: func(r *Ring, _ []Chunk) { r.bins.nonEmpty = 0 },
		},
		{
			name: "empty bin in the map", want: InvariantBinMap,
			corrupt: func(r *Ring, _ []Chunk) { r.bins.nonEmpty |= 1 << 60 },
		},
		{
			name: "record forgotten", want: InvariantRecords,
			corrupt: func(r *Ring, _ []Chunk) { r.takeRecord() },
		},
		{
			name: "record spare while in use", want: InvariantRecords,
			corrupt: func(r *Ring, live []Chunk) { r.spare = r.lookup(live[0]) },
		},
		{
			name: "span neither chunk nor gap", want: InvariantRecords,
			also:    []string{InvariantFreeCount, InvariantGapList},
			corrupt: func(r *Ring, _ []Chunk) { r.recs[r.current].kind = spareRecord },
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r, live := mixedRing(t)
			tc.corrupt(r, live)
			found := r.Check()
			if !slices.ContainsFunc(found, func(v Violation) bool { return v.Invariant == tc.want }) {
				t.Errorf("Check did not name %q; it found %v", tc.want, found)
			}
			for _, v := range found {
				if v.Invariant != tc.want && !slices.Contains(tc.also, v.Invariant) {
					t.Errorf("Check also named %v", v)
				}
				if v.Detail == "" {
					t.Errorf("no detail with %q", v.Invariant)
				}
			}
		})
	}
}

// TestCheckSurvivesAnything sets every link, in turn, to several critical values,
// and wants an answer and neither a panic nor an endless walk.
func TestCheckSurvivesAnything(t *testing.T) {
	links := map[string]func(*record) *uint32{
		"left":  func(s *record) *uint32 { return &s.left },
		"right": func(s *record) *uint32 { return &s.right },
		"prev":  func(s *record) *uint32 { return &s.prev },
		"next":  func(s *record) *uint32 { return &s.next },
	}
	r, _ := mixedRing(t)
	for name, link := range links {
		for ref := range r.recs {
			saved := *link(&r.recs[ref])
			for to := range uint32(len(r.recs) + 2) {
				*link(&r.recs[ref]) = to
				_ = r.Check()
			}
			*link(&r.recs[ref]) = saved
			if found := r.Check(); found != nil {
				t.Fatalf("%s of record %d put back, still broken: %v", name, ref, found)
			}
		}
	}
}

// TestCheckBoundsItsAnswer breaks every chunk of a large ring.
func TestCheckBoundsItsAnswer(t *testing.T) {
	r, err := New(make([]byte, 1<<16), Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * maxViolations {
		if _, ok := r.Allocate(1, 0); !ok {
			t.Fatal("no space")
		}
	}
	clear(r.buf)
	if found := r.Check(); len(found) != maxViolations {
		t.Errorf("%d findings, want %d", len(found), maxViolations)
	}
}

func TestViolationString(t *testing.T) {
	v := Violation{Invariant: InvariantOverlap, Detail: "bytes 1 to 2"}
	if got, want := v.String(), "overlap: bytes 1 to 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestFailedSearchIsNotRepeated: a search of a whole bin without success
// leaves the exact bound behind.
func TestFailedSearchIsNotRepeated(t *testing.T) {
	r, _ := mixedRing(t)
	gap := parked(r)
	span := r.recs[gap].span
	b := r.binOf(span)
	r.bins.bound[b] = 2*span - 1
	if got := r.search(b, span+1); got != none {
		t.Fatalf("found record %d with %d bytes, wanted more than %d", got, r.recs[got].span, span)
	}
	if r.bins.bound[b] != span {
		t.Errorf("the bound of bin %d is %d, want %d", b, r.bins.bound[b], span)
	}
}
