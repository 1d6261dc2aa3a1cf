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

// Payloads may also live on the heap, where there is no shared memory or no
// need for it.
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
