package shmstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
)

// channelPairNS measures one send and one receive on a buffered channel, by
// one goroutine: the cost of passing a handle without any store.
func channelPairNS(n int) float64 {
	c := make(chan Handle, 64)
	var h Handle
	times := newSample()
	const batch = 256
	for range n / batch {
		start := time.Now()
		for range batch {
			c <- h
			h = <-c
		}
		times.add(time.Since(start))
	}
	return times.medianNS() / batch
}

// sample keeps the last durations, for their median:
// on a shared machine the mean depends on other programs.
type sample struct {
	kept []time.Duration
	n    int
}

func newSample() *sample { return &sample{kept: make([]time.Duration, 4096)} }

func (s *sample) add(d time.Duration) {
	s.kept[s.n%len(s.kept)] = d
	s.n++
}

func (s *sample) medianNS() float64 {
	kept := slices.Sorted(slices.Values(s.kept[:min(s.n, len(s.kept))]))
	return float64(kept[len(kept)/2].Nanoseconds())
}

// window is the number of objects between a put and its reads. It is that of a
// batch of an eviction, so that one falls into most windows.
const window = maxCandidates

// BenchmarkPut reserves and commits objects without filling them, in a full
// store, so that each put also pays for an eviction. Each object is charged
// to all readers, and each of them takes and releases it.
//
// The figures are means, not medians: objects are evicted by the dozen, and the
// median of spans shorter than that would leave the evictions out.
//
//	put-ns     reserve and commit, with its part of the evictions
//	read-ns    take and release, for each reader
//	channels   one put and one read, in pairs of channel operations
func BenchmarkPut(b *testing.B) {
	for _, memory := range memories() {
		for _, size := range []int{64, 1 << 20} {
			for _, readers := range []int{1, 8, 64} {
				b.Run(fmt.Sprintf("%v/size=%d/readers=%d", memory, size, readers), func(b *testing.B) {
					benchmarkPut(b, Options{Memory: memory, ArenaBytes: int64(max(4*window*size, 1<<20))}, size, readers)
				})
			}
		}
	}
}

func benchmarkPut(b *testing.B, opts Options, size, readers int) {
	s, err := Create(opts)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	all := []*Reader{s.Local()}
	for len(all) < readers {
		r, err := s.DeclareReader("bench")
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, r)
	}
	var handles [window]Handle
	put := func() {
		for i := range handles {
			res, err := s.Reserve(size, codec.IDRaw, s.present)
			if err != nil {
				b.Fatal(err)
			}
			if handles[i], err = res.Commit(size, 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	read := func() {
		for _, r := range all {
			for i := range handles {
				l, err := r.Take(handles[i])
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
		}
	}
	for s.counters.evicted == 0 { // fill the store
		put()
		read()
	}
	var putting, reading time.Duration
	b.ReportAllocs()
	for b.Loop() {
		t0 := time.Now()
		put()
		t1 := time.Now()
		read()
		putting += t1.Sub(t0)
		reading += time.Since(t1)
	}
	puts := float64(b.N) * window
	putNS := float64(putting.Nanoseconds()) / puts
	readNS := float64(reading.Nanoseconds()) / puts / float64(len(all))
	b.ReportMetric(putNS, "put-ns")
	b.ReportMetric(readNS, "read-ns")
	b.ReportMetric((putNS+readNS)/channelPairNS(1_000_000), "channels")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPin reads an object for which no reader was charged.
func BenchmarkPin(b *testing.B) {
	s, err := Create(Options{Memory: Heap, ArenaBytes: 1 << 20})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	h, err := s.Put(make([]byte, 64), 0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		l, err := s.Local().Pin(h)
		if err != nil {
			b.Fatal(err)
		}
		l.Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/channelPairNS(1_000_000), "channels")
}

// BenchmarkBytes reads an object under a lease: in the arena, and in a
// segment of its own.
func BenchmarkBytes(b *testing.B) {
	s, err := Create(Options{Memory: Heap, ArenaBytes: 1 << 20, LargeObjectBytes: 1 << 10})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for _, size := range []int{64, 1 << 16} {
		h, err := s.Put(make([]byte, size), 0)
		if err != nil {
			b.Fatal(err)
		}
		l, err := s.Local().Pin(h)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("large=%t", IsLarge(h)), func(b *testing.B) {
			sum := 0
			for b.Loop() {
				sum += int(l.Bytes()[0])
			}
			_ = sum
		})
		l.Release()
	}
}

// BenchmarkLarge puts an object with a segment of its own into a store that has
// space for no other, so that each put also evicts one, and compares
// that with copying the object to existing memory.
func BenchmarkLarge(b *testing.B) {
	for _, memory := range memories() {
		for _, size := range []int{1 << 20, 16 << 20} {
			b.Run(fmt.Sprintf("%v/size=%d", memory, size), func(b *testing.B) {
				s, err := Create(Options{Memory: memory, ArenaBytes: 1 << 20, MaxLargeBytes: int64(size)})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				src, dst := alignedBytes(size), alignedBytes(size)
				fill(src, 1)
				fill(dst, 2)
				puts, copies := newSample(), newSample()
				b.SetBytes(int64(size))
				for b.Loop() {
					t0 := time.Now()
					if _, err := s.Put(src, 0); err != nil {
						b.Fatal(err)
					}
					t1 := time.Now()
					copy(dst, src)
					puts.add(t1.Sub(t0))
					copies.add(time.Since(t1))
				}
				b.ReportMetric(puts.medianNS()/copies.medianNS(), "copies")
			})
		}
	}
}

// BenchmarkLargeLengths reserves, fills and takes large objects in a store with Reuse, three
// of them alive at a time: all of one length, and each of another.
func BenchmarkLargeLengths(b *testing.B) {
	const least, spread, alive = 17 << 20, 2 << 20, 3
	src := alignedBytes(least + spread)
	fill(src, 1)
	for name, step := range map[string]int{"one": 0, "new": 12_345} {
		b.Run("lengths="+name, func(b *testing.B) {
			s, err := Create(Options{Memory: Shared, ArenaBytes: 64 << 20, Reuse: true})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			var handles []Handle
			for i := 0; b.Loop(); i++ {
				h, err := s.Put(src[:least+i*step%spread], Readers(0))
				if err != nil {
					b.Fatal(err)
				}
				if handles = append(handles, h); len(handles) < alive {
					continue
				}
				l, err := s.Local().Take(handles[0])
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
				handles = handles[1:]
			}
		})
	}
}

// BenchmarkCopy compares copying objects into the store with copying them to
// heap memory of the same size, cycled through in the same way and touched
// before.
func BenchmarkCopy(b *testing.B) {
	for _, memory := range memories() {
		for _, size := range []int{1 << 20, 64 << 20} {
			b.Run(fmt.Sprintf("%v/size=%d", memory, size), func(b *testing.B) {
				benchmarkCopy(b, memory, size)
			})
		}
	}
}

func benchmarkCopy(b *testing.B, memory Memory, size int) {
	const objects = 4
	footprint := objects * (size + 1<<10)
	s, err := Create(Options{Memory: memory, ArenaBytes: int64(footprint), MaxObjectBytes: int64(size)})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	src, heap := alignedBytes(size), alignedBytes(footprint)
	fill(src, 1)
	fill(heap, 2)
	storeTimes, heapTimes := newSample(), newSample()
	rounds := 0
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		t0 := time.Now()
		if _, err := s.Put(src, 0); err != nil {
			b.Fatal(err)
		}
		t1 := time.Now()
		index := rounds % objects * (size + 1<<10)
		copy(heap[index:index+size], src)
		storeTimes.add(t1.Sub(t0))
		heapTimes.add(time.Since(t1))
		rounds++
	}
	b.ReportMetric(heapTimes.medianNS()/storeTimes.medianNS(), "of-heap-speed")
	b.ReportMetric(float64(size)/storeTimes.medianNS(), "put-GB/s")
}
