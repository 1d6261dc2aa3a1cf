package shm_test

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/shm"
)

// A program registers the types that it needs, and opens connectors by name. This one puts a value
// and gets it itself.
func Example() {
	ctx := context.Background()
	types := new(connector.Registry)
	if err := types.Register(shm.Type()); err != nil {
		fmt.Println(err)
		return
	}
	c, err := types.Open(ctx, "SharedMemoryConnector", connector.Options{Extra: map[string]any{"shm_threshold_bytes": 0}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	edge := connector.Edge{From: "thinker", To: "talker"}
	_, meta, err := c.Put(ctx, edge, "request-1", []float32{1, 2, 3})
	if err != nil {
		fmt.Println(err)
		return
	}
	v, err := c.Get(ctx, edge, "request-1", meta)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Release()
	var hidden []float32
	fmt.Println(v.Decode(&hidden), hidden)
	// Output: <nil> [1 2 3]
}

// In a process that is attached to a host, values go through the host's exchange to all other
// attached processes. Await waits for one.
func Example_host() {
	ctx := context.Background()
	node, err := node.Join(ctx, "listener", node.JoinOptions{Bus: "speech"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Close(ctx)
	types := new(connector.Registry)
	if err := types.Register(shm.Type()); err != nil {
		fmt.Println(err)
		return
	}
	c, err := types.Open(ctx, shm.Name, connector.Options{Exchange: node})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	v, err := c.Await(ctx, connector.Edge{From: "thinker", To: "talker"}, "request-1", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Release()
	fmt.Println(v.Size())
}
