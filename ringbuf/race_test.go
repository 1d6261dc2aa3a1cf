package ringbuf_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// TestOneWriterManyReaders sends chunks to readers over a channel and gets
// them back over another. Readers check every byte, so that reuse of a live
// payload is found even without the race detector; with it, so is any access of
// the writer to one.
func TestOneWriterManyReaders(t *testing.T) {
	const readers, total = 8, 4000
	r, buf := newRing(t, 1<<14, ringbuf.Options{})
	handed := make(chan ringbuf.Chunk, readers)
	returned := make(chan ringbuf.Chunk, 1<<14/64) // never blocks a reader
	damaged := make(chan error, readers)

	var wg sync.WaitGroup
	for range readers {
		wg.Go(func() {
			for c := range handed {
				if err := readWhole(buf, c); err != nil {
					damaged <- err
					return
				}
				returned <- c
			}
		})
	}
	write(t, r, buf, handed, returned, damaged, total)
	close(handed)
	wg.Wait()
	close(returned)
	for c := range returned {
		release(t, r, c)
	}
	mustBeSound(t, r)
	if s := r.Stats(); s.Chunks != 0 || s.NextID != total+1 {
		t.Errorf("after all was returned: %+v", s)
	}
}

// write makes chunks of changing size. Without space it waits for a chunk to
// be returned.
func write(t *testing.T, r *ringbuf.Ring, buf []byte, handed chan<- ringbuf.Chunk, returned <-chan ringbuf.Chunk, damaged <-chan error, total int) {
	for i := 0; i < total; {
		c, ok := r.Allocate(1+i*37%1500, 0)
		if !ok {
			select {
			case back := <-returned:
				release(t, r, back)
			case err := <-damaged:
				t.Fatal(err)
			}
			continue
		}
		payload := buf[c.Addr:][:c.Size]
		for j := range payload {
			payload[j] = byte(c.ID) ^ byte(j)
		}
		select {
		case handed <- c:
		case err := <-damaged:
			t.Fatal(err)
		}
		i++
	}
}

func readWhole(buf []byte, c ringbuf.Chunk) error {
	for j, b := range buf[c.Addr:][:c.Size] {
		if b != byte(c.ID)^byte(j) {
			return fmt.Errorf("%v: byte %d is %#x", c, j, b)
		}
	}
	return nil
}
