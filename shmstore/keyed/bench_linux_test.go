package keyed_test

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// medianNS is the median of durations, in nanoseconds.
func medianNS(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds())
}

// newBenchStore makes a store of raw bytes, and attached readers.
func newBenchStore(b *testing.B, arenaBytes int64, readers int) (*keyed.Store, []*keyed.Reader) {
	b.Helper()
	s, err := keyed.Create(keyed.Options{Store: shmstore.Options{ArenaBytes: arenaBytes}, Serializer: codec.RawSerializer{}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	all := make([]*keyed.Reader, readers)
	for i := range all {
		all[i], _ = reader(b, s)
	}
	return s, all
}

// BenchmarkPut puts 1 MiB under new keys into a full store, so that each put includes an eviction, and in turn copies
// as many bytes to as much shared memory. Heap memory has larger pages, and is no baseline.
//
//	put-ns   median of a put
//	copies   median of a put, in medians of codec.Copy
func BenchmarkPut(b *testing.B) {
	const size, arena = 1 << 20, 32 << 20
	s, readers := newBenchStore(b, arena, 1)
	segment, err := shmstore.NewSegment("copies", arena)
	if err != nil {
		b.Fatal(err)
	}
	defer segment.Close()
	value, other := block(1, size), segment.Bytes()
	keys := make([]string, 256)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	var puts, copies []time.Duration
	for i := 0; b.Loop(); i++ {
		key := keys[i%len(keys)]
		start := time.Now()
		h, err := s.Put(key, value)
		puts = append(puts, time.Since(start))
		if err == nil {
			err = readers[0].Drop(h)
		}
		if err != nil {
			b.Fatal(err)
		}
		to := other[i*size%arena:][:size]
		start = time.Now()
		codec.Copy(to, value)
		copies = append(copies, time.Since(start))
	}
	b.ReportMetric(medianNS(puts), "put-ns")
	b.ReportMetric(medianNS(puts)/medianNS(copies), "copies")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHit asks for an existing key, which charges eight readers.
func BenchmarkHit(b *testing.B) {
	s, readers := newBenchStore(b, 1<<20, 8)
	h, err := s.Put("k", block(1, 1000))
	if err != nil {
		b.Fatal(err)
	}
	const batch = 256
	var hits []time.Duration
	for b.Loop() {
		start := time.Now()
		for range batch {
			if _, err := s.GetCached("k"); err != nil {
				b.Fatal(err)
			}
		}
		hits = append(hits, time.Since(start))
		for _, r := range readers {
			for range batch {
				if err := r.Drop(h); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportMetric(medianNS(hits)/batch, "hit-ns")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkGet gets and releases a value of 1 MiB in another process.
func BenchmarkGet(b *testing.B) {
	s, _ := newBenchStore(b, 4<<20, 0)
	at := path(b)
	if err := s.Listen(at); err != nil {
		b.Fatal(err)
	}
	p, said := start(b, "bench "+at)
	if said != "ok" {
		b.Fatal(said)
	}
	h, err := s.Put("k", block(1, 1<<20))
	if err != nil {
		b.Fatal(err)
	}
	const batch = 256
	for range batch - 1 {
		if err := s.Touch("k"); err != nil {
			b.Fatal(err)
		}
	}
	var took []time.Duration
	for b.Loop() {
		var ns time.Duration
		var gets int
		if _, err := fmt.Sscan(p.ask("", h), &ns, &gets); err != nil || gets != batch {
			b.Fatalf("%d gets, %v; want %d", gets, err, batch)
		}
		took = append(took, ns)
		for range batch {
			if err := s.Touch("k"); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(medianNS(took)/batch, "get-ns")
	b.ReportMetric(0, "ns/op")
}

// benchRole prints how many nanoseconds the gets and releases of all charges of the reader take.
func benchRole(path string) error {
	r, err := keyed.Dial(path)
	answer(err)
	if err != nil {
		return err
	}
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		var h shmstore.Handle
		wire, err := hex.DecodeString(asked.Text())
		if err == nil {
			err = h.UnmarshalBinary(wire)
		}
		if err != nil {
			return err
		}
		gets := 0
		start := time.Now()
		for v, err := r.Get(h); err == nil; v, err = r.Get(h) { // until shmstore.ErrNoDebt
			v.Release()
			gets++
		}
		took := time.Since(start)
		fmt.Fprintln(os.Stdout, int64(took), gets)
	}
	return nil
}
