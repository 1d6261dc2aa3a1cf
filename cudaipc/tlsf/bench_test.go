package tlsf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// bestFit is the allocator for comparison: a list of the free ranges by offset, from which the
// smallest that fits is taken.
type bestFit struct {
	free []span
	used map[int64]int64
}

type span struct{ at, size int64 }

func newBestFit(size int64) *bestFit {
	return &bestFit{free: []span{{0, size}}, used: make(map[int64]int64)}
}

func (b *bestFit) Allocate(size int64) (int64, bool) {
	size = (size + Granule - 1) &^ (Granule - 1)
	best := -1
	for i := range b.free {
		if b.free[i].size >= size && (best < 0 || b.free[i].size < b.free[best].size) {
			best = i
		}
	}
	if best < 0 {
		return 0, false
	}
	at := b.free[best].at
	b.used[at] = size
	if b.free[best].size == size {
		b.free = slices.Delete(b.free, best, best+1)
	} else {
		b.free[best] = span{at + size, b.free[best].size - size}
	}
	return at, true
}

func (b *bestFit) Free(at int64) {
	size := b.used[at]
	delete(b.used, at)
	i, _ := slices.BinarySearchFunc(b.free, at, func(s span, at int64) int { return int(s.at - at) })
	switch before, behind := i > 0 && b.free[i-1].at+b.free[i-1].size == at, i < len(b.free) && b.free[i].at == at+size; {
	case before && behind:
		b.free[i-1].size += size + b.free[i].size
		b.free = slices.Delete(b.free, i, i+1)
	case before:
		b.free[i-1].size += size
	case behind:
		b.free[i] = span{at, size + b.free[i].size}
	default:
		b.free = slices.Insert(b.free, i, span{at, size})
	}
}

type allocator interface {
	Allocate(sizeBytes int64) (int64, bool)
	Free(offset int64)
}

// BenchmarkAllocate keeps a memory loaded to 70 %, with sizes around a median of 2 MiB (log-normal,
// sigma 1), freed in random order. One operation is one Allocate and the Free that made space for
// it.
//
//	unfit-%  requested bytes that did not fit into one free range
func BenchmarkAllocate(b *testing.B) {
	for _, arenaBytes := range []int64{256 << 20, 16 << 30} {
		for _, kind := range []string{"tlsf", "bestfit"} {
			b.Run(fmt.Sprintf("%s/arena=%dMiB", kind, arenaBytes>>20), func(b *testing.B) {
				var a allocator = New(arenaBytes)
				if kind == "bestfit" {
					a = newBestFit(arenaBytes)
				}
				benchmarkAllocate(b, a, arenaBytes)
			})
		}
	}
}

func benchmarkAllocate(b *testing.B, a allocator, arenaBytes int64) {
	random := rand.New(rand.NewPCG(1, 2))
	sizes := make([]int64, 1<<14)
	for i := range sizes {
		sizes[i] = min(int64(math.Exp(random.NormFloat64())*(2<<20)), arenaBytes/2)
	}
	load := arenaBytes * 7 / 10
	var inUse []span
	var used, asked, unfit int64
	step := func(i int) {
		size := sizes[i%len(sizes)]
		for used+size > load {
			at := random.IntN(len(inUse))
			gone := inUse[at]
			inUse[at] = inUse[len(inUse)-1]
			inUse = inUse[:len(inUse)-1]
			used -= gone.size
			a.Free(gone.at)
		}
		asked += size
		if at, ok := a.Allocate(size); ok {
			inUse = append(inUse, span{at, size})
			used += size
		} else {
			unfit += size
		}
	}
	const warm = 20_000
	for i := range warm {
		step(i)
	}
	asked, unfit = 0, 0
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		step(i)
		i++
	}
	b.ReportMetric(100*float64(unfit)/float64(asked), "unfit-%")
}
