package ringbuf_test

import (
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

	// The writer allocates, fills, and announces address and size.
	c, ok := ring.Allocate(5, 0)
	if !ok {
		fmt.Println("no room:", ring.Stats())
		return
	}
	copy(buf[c.Addr:][:c.Size], "hello")
	fmt.Println("wrote", c)

	// When the readers are done, the writer releases the chunk. From now on
	// using it is an error.
	fmt.Println("release:", ring.Release(c))
	fmt.Println("release again:", ring.Release(c))

	// Output:
	// wrote chunk 1 (5 bytes at 64)
	// release: <nil>
	// release again: release chunk 1 (5 bytes at 64): the chunk was released before
}
