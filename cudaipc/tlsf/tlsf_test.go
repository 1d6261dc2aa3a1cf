package tlsf

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func wantClean(t testing.TB, a *Allocator) {
	t.Helper()
	for _, v := range a.Check() {
		t.Errorf("Check: %v", v)
	}
}

func mustAllocate(t testing.TB, a *Allocator, sizeBytes int64) int64 {
	t.Helper()
	offset, ok := a.Allocate(sizeBytes)
	if !ok {
		t.Fatalf("no space for %d bytes: %d of %d in use, %d in one piece", sizeBytes, a.UsedBytes(), int64(a.size)<<granuleLog, a.LargestFree())
	}
	return offset
}

func mustPanic(t *testing.T, what string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s does not panic", what)
		}
	}()
	f()
}

func TestBounds(t *testing.T) {
	mustPanic(t, "no memory", func() { New(Granule - 1) })
	mustPanic(t, "too much memory", func() { New(MaxBytes + 1) })
	for _, sizeBytes := range []int64{Granule, Granule + 1, MaxBytes} {
		a := New(sizeBytes)
		whole := sizeBytes &^ (Granule - 1)
		if int64(a.size)<<granuleLog != whole || a.LargestFree() != whole {
			t.Errorf("of %d bytes, %d are there and %d free", sizeBytes, int64(a.size)<<granuleLog, a.LargestFree())
		}
		if _, ok := a.Allocate(whole + 1); ok {
			t.Errorf("more than %d bytes were allocated", whole)
		}
		if offset := mustAllocate(t, a, whole); offset != 0 || a.UsedBytes() != whole || a.LargestFree() != 0 {
			t.Errorf("all %d bytes are at %d, %d in use", whole, offset, a.UsedBytes())
		}
		if _, ok := a.Allocate(0); ok {
			t.Error("a granule of a full memory was allocated")
		}
		wantClean(t, a)
		a.Free(0)
		wantClean(t, a)
	}
}

func TestBadFreePanics(t *testing.T) {
	a := New(100 * Granule)
	offset := mustAllocate(t, a, 3*Granule)
	for _, wrong := range []int64{offset + 1, offset + Granule, -Granule, 100 * Granule, offset + 1<<40} {
		mustPanic(t, "a free of nothing", func() { a.Free(wrong) })
	}
	a.Free(offset)
	mustPanic(t, "a second free", func() { a.Free(offset) })
	wantClean(t, a)
}

// TestEmptyMemoryTakesAnySize: the free space of any size class is found.
func TestEmptyMemoryTakesAnySize(t *testing.T) {
	for _, units := range []int64{1, 31, 32, 33, 63, 64, 65, 1000, 1023, 1024, 1 << 20, 1<<20 + 12345} {
		a := New(units * Granule)
		for size := units; size > 0; size = size * 9 / 10 {
			a.Free(mustAllocate(t, a, size*Granule))
		}
	}
}

// TestSameSizesReuseBlocks: an allocation takes a freed block of its size, so that the rest stays
// in one piece.
func TestSameSizesReuseBlocks(t *testing.T) {
	a := New(1 << 20)
	sizes := []int64{100_000, 37 * Granule, 5000}
	var offsets []int64
	for range 3 {
		for _, size := range sizes {
			offsets = append(offsets, mustAllocate(t, a, size))
		}
	}
	largest := a.LargestFree()
	for range 100 {
		for i, size := range sizes { // one free block of each size, between blocks in use
			a.Free(offsets[3+i])
			if again := mustAllocate(t, a, size); again != offsets[3+i] {
				t.Fatalf("%d bytes moved from %d to %d", size, offsets[3+i], again)
			}
		}
	}
	if a.LargestFree() != largest {
		t.Errorf("the largest free block has %d bytes, it had %d", a.LargestFree(), largest)
	}
	wantClean(t, a)
}

// model is a list of the used ranges.
type model struct {
	a     *Allocator
	units int64
	inUse map[int64]int64 // offset to granules
}

func (m *model) used() (units int64) {
	for _, n := range m.inUse {
		units += n
	}
	return units
}

// largestFree returns the longest run of free granules.
func (m *model) largestFree() (units int64) {
	end := int64(0)
	for _, offset := range slices.Sorted(maps.Keys(m.inUse)) {
		units = max(units, offset-end)
		end = offset + m.inUse[offset]
	}
	return max(units, m.units-end)
}

func (m *model) Allocate(t *rapid.T) {
	sizeBytes := rapid.Int64Range(0, m.units*Granule*3/2).Draw(t, "bytes")
	if rapid.Bool().Draw(t, "small") {
		sizeBytes %= 40 * Granule
	}
	units := max(1, (sizeBytes+Granule-1)/Granule)
	offset, ok := m.a.Allocate(sizeBytes)
	largest := m.largestFree()
	switch {
	case !ok && units+units/second < largest:
		t.Fatalf("no space for %d granules, %d are free in one piece", units, largest)
	case !ok:
		return
	case units > largest:
		t.Fatalf("%d granules were allocated, %d are free in one piece", units, largest)
	}
	at := offset / Granule
	if offset%Granule != 0 || at < 0 || at+units > m.units {
		t.Fatalf("%d granules at %d are not in the memory of %d", units, at, m.units)
	}
	for other, n := range m.inUse {
		if at < other+n && other < at+units {
			t.Fatalf("%d granules at %d reach into %d at %d", units, at, n, other)
		}
	}
	m.inUse[at] = units
}

func (m *model) Free(t *rapid.T) {
	if len(m.inUse) == 0 {
		t.Skip("nothing in use")
	}
	at := rapid.SampledFrom(slices.Sorted(maps.Keys(m.inUse))).Draw(t, "at")
	m.a.Free(at * Granule)
	delete(m.inUse, at)
}

// Check runs after every step.
func (m *model) Check(t *rapid.T) {
	for _, v := range m.a.Check() {
		t.Errorf("Check: %v", v)
	}
	if m.a.UsedBytes() != m.used()*Granule || m.a.Blocks() != len(m.inUse) {
		t.Errorf("%d bytes in %d blocks are said to be in use, want %d in %d", m.a.UsedBytes(), m.a.Blocks(), m.used()*Granule, len(m.inUse))
	}
	if got, want := m.a.LargestFree(), m.largestFree()*Granule; got != want {
		t.Errorf("%d bytes are said to be free in one piece, want %d", got, want)
	}
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		units := rapid.Int64Range(1, 3000).Draw(t, "granules")
		m := &model{a: New(units * Granule), units: units, inUse: make(map[int64]int64)}
		t.Repeat(rapid.StateMachineActions(m))
	})
}

// FuzzAllocator reads each byte as an operation: to allocate a size, or to free the oldest range,
// the youngest, or one between.
func FuzzAllocator(f *testing.F) {
	f.Add([]byte{1, 2, 3, 200, 4, 250, 5, 128, 6})
	f.Add([]byte{100, 100, 100, 255, 254, 253, 100})
	f.Fuzz(func(t *testing.T, orders []byte) {
		a := New(2000 * Granule)
		var inUse []int64
		for _, order := range orders[:min(len(orders), 500)] {
			if order < 128 || len(inUse) == 0 {
				if offset, ok := a.Allocate(int64(order) * int64(order) * 7); ok {
					inUse = append(inUse, offset)
				}
				continue
			}
			i := int(order-128) * len(inUse) / 128
			a.Free(inUse[i])
			inUse = slices.Delete(inUse, i, i+1)
		}
		wantClean(t, a)
		for _, offset := range inUse {
			a.Free(offset)
		}
		wantClean(t, a)
		if a.LargestFree() != int64(a.size)<<granuleLog {
			t.Errorf("%d of %d bytes are in one piece when all is free", a.LargestFree(), int64(a.size)<<granuleLog)
		}
	})
}
