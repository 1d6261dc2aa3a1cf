package flow_test

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/flow"
	"github.com/omnibus-runtime/omnibus/connector/shm"
)

// A stage opens the connectors of its edges, sends a value, and sends the notification to the next
// stage over any queue. config.Pipeline.Plan makes the plan of a pipeline file.
func Example() {
	ctx := context.Background()
	types := new(connector.Registry)
	if err := types.Register(shm.Type()); err != nil {
		fmt.Println(err)
		return
	}
	plan := flow.Plan{{Edge: connector.Edge{From: "thinker", To: "talker"}, Type: shm.Name}}
	thinker, err := plan.Open(ctx, types, "thinker", connector.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer thinker.Close()
	talker, err := plan.Open(ctx, types, "talker", connector.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer talker.Close()

	notification, _, err := thinker.Send(ctx, "talker", "request-1", nil, "hello")
	if err != nil {
		fmt.Println(err)
		return
	}
	v, got, err := talker.Receive(ctx, notification)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer v.Release()
	var text string
	fmt.Println(v.Decode(&text), text, got.Bytes, "bytes")
	// Output: <nil> hello 6 bytes
}
