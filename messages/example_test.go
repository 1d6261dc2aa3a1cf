package messages_test

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/messages"
)

// A delivery crosses from one process to another: the handle travels, the
// payload stays in its store.
func ExampleParseDelivery() {
	sent := messages.Delivery{
		Request: 7,
		Seq:     3,
		Edge:    "talker->vocoder",
		Handle:  messages.Handle{Store: 0xa1, Gen: 12, Offset: 4096, Size: 6400, Slot: 2},
	}
	wire, err := sent.AppendBinary(nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	received, err := messages.ParseDelivery(wire)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(received)
	// Output:
	// delivery(talker->vocoder request 0000000000000007 epoch 0 seq 3: handle(store a1 slot 2 gen 12: 6400 bytes at 4096))
}

// A sender learns of its own mistake before anything leaves the process.
func ExampleDelivery_Validate() {
	d := messages.Delivery{Edge: "thinker->talker"}
	fmt.Println(d.Validate())
	// Output:
	// malformed message: Delivery.payload: none; only the end of a stream may come without one
}
