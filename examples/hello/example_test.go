package main

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func Example() {
	main()
	// Output: Hello, world!
}

// Payloads may also be on the heap, where shared memory is not available or not
// needed.
func Example_heap() {
	err := run(context.Background(), bus.Options{Store: shmstore.Options{Memory: shmstore.Heap}})
	fmt.Println("error:", err)
	// Output:
	// Hello, world!
	// error: <nil>
}

func Example_canceled() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	fmt.Println(run(ctx, bus.Options{}))
	// Output: bus: open: context canceled
}
