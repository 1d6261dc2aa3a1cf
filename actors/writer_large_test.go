package actors_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestWriterServesOthersWhileMemoryIsMade: while the system allocates and clears the memory of
// a large object, other reservations do not wait, including those of other large objects.
func TestWriterServesOthersWhileMemoryIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, shmstore.Options{ArenaBytes: 64 << 10, LargeObjectBytes: 16 << 10, MaxLargeBytes: 1 << 20, Reuse: true})
		making, made := make(chan struct{}, 2), make(chan struct{})
		h.store.OnLarge(func([]byte) func(unmap, stays func()) {
			making <- struct{}{}
			<-made
			return func(unmap, _ func()) { unmap() }
		})
		var large [2]*pending
		for i := range large {
			large[i] = h.request(t, nil, nil, 1, 100<<10)
		}
		if len(making) != len(large) {
			t.Fatalf("the memory of %d large objects is being made, want %d", len(making), len(large))
		}
		small := h.request(t, nil, nil, 1, twelveKB)
		small.mustBeGranted(t, "a small one, while memory of large ones is made,")
		if err := h.Do(func(s *shmstore.Store) {
			if vs := s.Check(); len(vs) > 0 {
				t.Errorf("while memory is made: %v", vs)
			}
		}); err != nil {
			t.Error(err)
		}
		close(made)
		synctest.Wait()
		for _, w := range large {
			w.mustBeGranted(t, "a large one")
			if n := len(w.got[0].Bytes()); n != 100<<10 {
				t.Errorf("%d bytes, want %d", n, 100<<10)
			}
			abortAll(w.got)
		}
		abortAll(small.got)
		again := h.request(t, nil, nil, 1, 100<<10)
		again.mustBeGranted(t, "another large one")
		abortAll(again.got)
		if len(making) != len(large) {
			t.Error("memory was made although free memory was at hand")
		}
	})
}

// TestWriterMakesMemoryConcurrently: many goroutines make memory at a time, of many sizes, more than the
// store may have, while the writer checks its accounts.
func TestWriterMakesMemoryConcurrently(t *testing.T) {
	const goroutines, rounds, least, spread = 6, 200, 20 << 10, 60 << 10
	h := newHost(t, shmstore.Options{ArenaBytes: 64 << 10, LargeObjectBytes: 16 << 10, MaxLargeBytes: 256 << 10, Reuse: true})
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range rounds {
				size := least + (g*7919+i*104_729)%spread
				got, err := h.Reserve(nil, nil, nil, 1, size, codec.IDRaw)
				if err != nil {
					t.Error(err)
					return
				}
				mem := got[0].Bytes()
				for at := range mem {
					mem[at] = byte(size)
				}
				if i%8 == 0 {
					got[0].Abort()
					continue
				}
				handle, err := got[0].Commit(size, 1)
				if err != nil {
					t.Error(err)
					return
				}
				l, err := h.store.Local().Take(handle)
				if err != nil {
					t.Error(err)
					return
				}
				if b := l.Bytes(); len(b) != size || b[0] != byte(size) || b[size-1] != byte(size) {
					t.Errorf("%d bytes that begin with %d, want %d", len(b), b[0], size)
				}
				l.Release()
			}
		})
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	for {
		select {
		case <-over:
			return
		default:
		}
		if err := h.Do(func(s *shmstore.Store) {
			for _, v := range s.Check() {
				t.Errorf("Check: %v", v)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}
