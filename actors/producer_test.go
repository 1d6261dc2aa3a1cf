package actors_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// take reserves space that must be free.
func take(t testing.TB, p *actors.Producer, size int) *shmstore.Reservation {
	t.Helper()
	r, err := p.Reserve(nil, nil, size, codec.IDRaw)
	if err != nil {
		t.Fatalf("Reserve of %d bytes: %v", size, err)
	}
	return &r
}

// TestProducerExtentsDouble checks how much the writer grants at each request.
func TestProducerExtentsDouble(t *testing.T) {
	tests := []struct {
		size int
		want []uint64 // granted, request by request
	}{
		{size: 1 << 10, want: []uint64{1, 2, 4, 8, 16, 32, 64, 64}},
		{size: 4 << 10, want: []uint64{1, 2, 4, 8, 16, 32, 64, 64}},
		{size: 16 << 10, want: []uint64{1, 2, 4, 8, 16, 16}},
		{size: 64 << 10, want: []uint64{1, 2, 4, 4, 4}},
		{size: 64<<10 + 1, want: []uint64{1, 1, 1, 1}},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.size), func(t *testing.T) {
			h := newHost(t, shmstore.Options{ArenaBytes: 4 << 20, Slots: 4096})
			p := h.NewProducer()
			defer p.Close()
			var got []uint64
			before := h.stats(t).ReservedTotal
			for len(got) < len(tt.want) {
				take(t, p, tt.size).Abort()
				total := h.stats(t).ReservedTotal
				if granted := total - before; granted > 0 {
					got = append(got, granted)
				}
				before = total
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("extents (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExtentNeedsNoRequest reserves from an extent, without a request to the writer
// and without an allocation.
func TestExtentNeedsNoRequest(t *testing.T) {
	h := newHost(t, shmstore.Options{ArenaBytes: 4 << 20})
	p := h.NewProducer()
	defer p.Close()
	if _, ok := p.TryReserve(100, codec.IDRaw); ok {
		t.Error("TryReserve found space in a new producer")
	}
	for range actors.ExtentSlots { // the last of an extent, and the first of a full one
		take(t, p, 100).Abort()
	}
	before := h.stats(t).ReservedTotal
	const runs = actors.ExtentSlots / 4
	allocs := testing.AllocsPerRun(runs, func() {
		r, err := p.Reserve(nil, nil, 100, codec.IDRaw)
		if err != nil {
			t.Fatal(err)
		}
		r.Abort()
	})
	if allocs != 0 {
		t.Errorf("a reservation from an extent allocates %v times", allocs)
	}
	for range runs {
		r, ok := p.TryReserve(100, codec.IDRaw)
		if !ok {
			t.Fatal("TryReserve failed although the extent has reservations")
		}
		r.Abort()
	}
	if granted := h.stats(t).ReservedTotal - before; granted != 0 {
		t.Errorf("the writer granted %d reservations meanwhile", granted)
	}
	for _, size := range []int{-1, 0, 1<<16 + 1} {
		if _, ok := p.TryReserve(size, codec.IDRaw); ok {
			t.Errorf("TryReserve of %d bytes", size)
		}
	}
}

// small has space for 15 payloads of fourKB, or one of 60 KiB.
var small = shmstore.Options{ArenaBytes: 64 << 10, Slots: 64, MaxObjectBytes: 60 << 10}

const fourKB = 4 << 10

// fillExtent leaves reservations of fourKB unused in p's extents, and returns how
// many.
func fillExtent(t *testing.T, h *host, p *actors.Producer) int {
	t.Helper()
	for range 4 { // extents of 1, 2 and 4; the fourth fetches the last of these
		take(t, p, fourKB).Abort()
	}
	idle := h.stats(t).Reserved
	if idle != 3 {
		t.Fatalf("%d reservations are unused, want 3 of an extent of 4", idle)
	}
	return idle
}

// TestProducerExtentsAreTakenBack requests space that lies unused in an extent.
func TestProducerExtentsAreTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, small)
		p := h.NewProducer() // not closed: the writer's end takes the rest back
		for range 2 {
			fillExtent(t, h, p)
			large := h.request(t, nil, nil, 1, 60<<10)
			large.mustBeGranted(t, "a reservation of the whole store")
			if _, ok := p.TryReserve(fourKB, codec.IDRaw); ok {
				t.Error("the producer still has revoked reservations")
			}
			abortAll(large.got)
		}
		fillExtent(t, h, p)
	})
}

// TestProducerKeepsNothingWhileOthersWait covers the moment between the grant of an
// extent and its registration by the producer. A reservation that begins to wait then
// finds no extent to revoke, and must get the space nevertheless.
func TestProducerKeepsNothingWhileOthersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, small)
		p := h.NewProducer()
		defer p.Close()
		granted, err := h.Reserve(nil, nil, nil, 8, fourKB, codec.IDRaw)
		if err != nil {
			t.Fatal(err)
		}
		large := h.request(t, nil, nil, 1, 40<<10)
		large.mustWait(t, "a reservation of the extent's space")
		p.Keep(fourKB, granted[1:])
		synctest.Wait()
		large.mustBeGranted(t, "a reservation of the extent's space")
		abortAll(large.got)
		granted[0].Abort()
		// Extents are kept again when no reservation waits.
		fillExtent(t, h, p)
	})
}

// TestProducerKeepsNothingAfterWriterClose closes the writer between the grant of an
// extent and its registration.
func TestProducerKeepsNothingAfterWriterClose(t *testing.T) {
	h := newHost(t, small)
	p := h.NewProducer()
	fillExtent(t, h, p)
	granted, err := h.Reserve(nil, nil, nil, 8, fourKB, codec.IDRaw)
	if err != nil {
		t.Fatal(err)
	}
	closeNow(t, h)
	p.Keep(fourKB, granted[1:])
	granted[0].Abort()
	if st := h.store.Stats(); st.Reserved != 0 {
		t.Errorf("%d reservations are left after the writer's end", st.Reserved)
	}
	if _, err := p.Reserve(nil, nil, 1, codec.IDRaw); !errors.Is(err, actors.ErrStopped) {
		t.Errorf("Reserve = %v, want ErrStopped", err)
	}
}

func TestProducerClose(t *testing.T) {
	h := newHost(t, small)
	p := h.NewProducer()
	for range 2 { // it may be used again
		fillExtent(t, h, p)
		p.Close()
		p.Close()
		if st := h.stats(t); st.Reserved != 0 {
			t.Errorf("%d reservations are left after Close", st.Reserved)
		}
		err := h.Do(func(s *shmstore.Store) {
			s.FreeUnused()
			if st := s.Stats(); st.Objects != 0 {
				t.Errorf("%d objects are left after the writer's next scan", st.Objects)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func TestProducerSizes(t *testing.T) {
	const none = -1
	tests := []struct {
		name      string
		maxObject int64
		size      int
		want      int // size of the reservation, or none
		err       error
	}{
		{name: "negative", maxObject: 1 << 18, size: -1, want: none, err: shmstore.ErrSize},
		{name: "empty", maxObject: 1 << 18, size: 0, want: 0},
		{name: "smallest", maxObject: 1 << 18, size: 1, want: 1 << 10},
		{name: "smallest class", maxObject: 1 << 18, size: 1 << 10, want: 1 << 10},
		{name: "next class", maxObject: 1 << 18, size: 1<<10 + 1, want: 1 << 11},
		{name: "inside", maxObject: 1 << 18, size: 3000, want: 1 << 12},
		{name: "last class", maxObject: 1 << 18, size: 1<<15 + 1, want: 1 << 16},
		{name: "its end", maxObject: 1 << 18, size: 1 << 16, want: 1 << 16},
		{name: "large", maxObject: 1 << 18, size: 1<<16 + 1, want: 1<<16 + 1},
		{name: "largest", maxObject: 1 << 18, size: 1 << 18, want: 1 << 18},
		{name: "too large", maxObject: 1 << 18, size: 1<<18 + 1, want: none, err: shmstore.ErrTooLarge},
		{name: "store without a whole class", maxObject: 500, size: 100, want: 500},
		{name: "its largest", maxObject: 500, size: 500, want: 500},
		{name: "too large for it", maxObject: 500, size: 501, want: none, err: shmstore.ErrTooLarge},
		{name: "store with half a class", maxObject: 1500, size: 1025, want: 1500},
		{name: "whole class of it", maxObject: 1500, size: 1024, want: 1024},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t, shmstore.Options{ArenaBytes: 1 << 20, MaxObjectBytes: tt.maxObject})
			p := h.NewProducer()
			defer p.Close()
			r, err := p.Reserve(nil, nil, tt.size, codec.IDTensor)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if tt.want == none {
				return
			}
			if got := len(r.Bytes()); got != tt.want {
				t.Errorf("space for %d bytes, want %d", got, tt.want)
			}
			handle, err := r.Commit(tt.size, 0)
			if err != nil {
				t.Fatal(err)
			}
			if handle.Size != uint64(tt.size) || codec.ID(handle.Codec) != codec.IDTensor {
				t.Errorf("handle %v, want %d bytes of codec %v", handle, tt.size, codec.IDTensor)
			}
		})
	}
}

// TestProducerCodecs takes payloads of different codecs from one extent: the codec in
// the handle equals the one that a reader finds.
func TestProducerCodecs(t *testing.T) {
	h := newHost(t, shmstore.Options{ArenaBytes: 1 << 20})
	p := h.NewProducer()
	defer p.Close()
	for i := range 40 {
		id := []codec.ID{codec.IDRaw, codec.IDMsgpack, codec.IDTensor, codec.FirstUserID}[i%4]
		r, err := p.Reserve(nil, nil, 10, id)
		if i%3 == 2 && err == nil { // also by TryReserve
			if again, ok := p.TryReserve(10, id); ok {
				r.Abort()
				r = again
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		handle, err := r.Commit(10, 1)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := h.store.Local().Take(handle)
		if err != nil {
			t.Fatal(err)
		}
		if got := codec.ID(lease.Handle().Codec); got != id {
			t.Errorf("payload %d has codec %v, want %v", i, got, id)
		}
		lease.Release()
	}
}

// TestProducerSharedByMany uses one producer on many goroutines, which also close
// it, while others request all the space at once. No two reservations may ever have
// the same bytes.
func TestProducerSharedByMany(t *testing.T) {
	const users, each = 6, 400
	noLeaks(t)
	h := newHost(t, small)
	p := h.NewProducer()
	var group sync.WaitGroup
	for u := range users {
		group.Go(func() {
			for i := range each {
				switch {
				case i%97 == 50:
					p.Close()
				case i%31 == 7:
					h.one(t, 50<<10).Abort()
				default:
					h.sendAndReceive(t, p, u, i)
				}
			}
		})
	}
	group.Wait()
	p.Close()
	if st := h.stats(t); st.Reserved != 0 {
		t.Errorf("%d reservations are left", st.Reserved)
	}
}

// BenchmarkReserve compares the cost of a reservation from an extent with that of a
// request to the writer. Rounds of both alternate, so that noise hits both. It
// reports nanoseconds for a reservation and its release (ns/op), the same with a
// request (request-ns/op), and the quotient (ratio).
func BenchmarkReserve(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			h := newHost(b, shmstore.Options{ArenaBytes: 16 << 20})
			p := h.NewProducer()
			defer p.Close()
			fromExtent := func(n int) {
				for range n {
					r, err := p.Reserve(nil, nil, size, codec.IDRaw)
					if err != nil {
						b.Fatal(err)
					}
					r.Abort()
				}
			}
			var one [1]shmstore.Reservation
			byRequest := func(n int) {
				for range n {
					got, err := h.Reserve(nil, nil, one[:0], 1, size, codec.IDRaw)
					if err != nil {
						b.Fatal(err)
					}
					got[0].Abort()
				}
			}
			const round = 1 << 10
			fromExtent(round)
			byRequest(round)
			var extent, request time.Duration
			b.ResetTimer()
			for left := b.N; left > 0; left -= round {
				n := min(left, round)
				start := time.Now()
				fromExtent(n)
				middle := time.Now()
				byRequest(n)
				extent += middle.Sub(start)
				request += time.Since(middle)
			}
			b.StopTimer()
			b.ReportMetric(float64(extent.Nanoseconds())/float64(b.N), "ns/op")
			b.ReportMetric(float64(request.Nanoseconds())/float64(b.N), "request-ns/op")
			b.ReportMetric(float64(extent)/float64(request), "ratio")
		})
	}
}
