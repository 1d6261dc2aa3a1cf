package ringbuf_test

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

func Example() {
	buf := make([]byte, 1<<10) // or a shared mapping
	ring, err := ringbuf.New(buf, ringbuf.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}

	// The writer allocates, fills, and announces address and id.
	c, err := ring.Allocate(5, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	payload, _ := ring.Bytes(c)
	copy(payload, "hello")
	fmt.Println("wrote", c)

	// A reader has nothing but the buffer and what it was told.
	seen, err := ringbuf.View(buf, c.Addr, c.ID)
	fmt.Printf("read %q, error %v\n", seen, err)

	// When the reader is done, the writer takes the room back. From now on
	// the chunk's name is an error.
	fmt.Println("release:", ring.Release(c))
	fmt.Println("release again:", ring.Release(c))

	// Output:
	// wrote chunk 1 (5 bytes at 64)
	// read "hello", error <nil>
	// release: <nil>
	// release again: release chunk 1 (5 bytes at 64): the chunk was released
}

// The usual loop of a writer: when there is no room, reclaim what the readers
// are done with, oldest first, and try again.
func ExampleRing_Reclaim() {
	ring, err := ringbuf.New(make([]byte, 512), ringbuf.Options{Align: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	busy := map[uint64]bool{1: true} // readers still use chunk 1

	for range 5 {
		c, err := ring.Allocate(140, 0)
		if errors.Is(err, ringbuf.ErrNoRoom) {
			freed := ring.Reclaim(func(c ringbuf.Chunk, _ []byte) bool { return !busy[c.ID] }, 140)
			fmt.Println("reclaimed", freed)
			c, err = ring.Allocate(140, 0)
		}
		fmt.Println(c, err)
	}
	// Output:
	// chunk 1 (140 bytes at 16) <nil>
	// chunk 2 (140 bytes at 172) <nil>
	// chunk 3 (140 bytes at 328) <nil>
	// reclaimed [2]
	// chunk 4 (140 bytes at 172) <nil>
	// reclaimed [3]
	// chunk 5 (140 bytes at 328) <nil>
}

// RoomError says whether room is short or only in pieces.
func ExampleRoomError() {
	ring, err := ringbuf.New(make([]byte, 100), ringbuf.Options{Align: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	a, _ := ring.Allocate(24, 0)
	_, _ = ring.Allocate(4, 0)
	_ = ring.Release(a)
	_, err = ring.Allocate(30, 0)
	fmt.Println(err)
	// Output:
	// no room in the ring: needs 46 bytes in one piece, the largest usable gap has 40, free in all 80 of 100; enough is free, but not in one piece: release the chunks between the gaps
}
