package shm_test

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/shm"
)

// Without a host, two processes hand values over through a store that both know by its
// name: the one that puts creates it. Here they are two connectors of one process.
func Example_store() {
	ctx := context.Background()
	types := new(connector.Registry)
	if err := types.Register(shm.Type()); err != nil {
		fmt.Println(err)
		return
	}
	extra := map[string]any{"store": "example", "ring_bytes": 1 << 20, "shm_threshold_bytes": 0}
	edge := connector.Edge{From: "thinker", To: "talker"}
	thinker, err := types.Open(ctx, shm.Name, connector.Options{Extra: extra})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer thinker.Close()
	talker, err := types.Open(ctx, shm.Name, connector.Options{Extra: extra})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer talker.Close()

	if _, _, err := thinker.Put(ctx, edge, "request-1", []float32{1, 2, 3}); err != nil {
		fmt.Println(err)
		return
	}
	v, err := talker.Await(ctx, edge, "request-1", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Release()
	var hidden []float32
	fmt.Println(v.Decode(&hidden), hidden)
	// Output: <nil> [1 2 3]
}
