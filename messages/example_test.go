package messages_test

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/messages"
)

// A delivery names its payload; the payload stays in its store.
func ExampleDelivery() {
	fmt.Println(messages.Delivery{
		Request: 7,
		Seq:     3,
		Edge:    "talker->vocoder",
		Handle:  messages.Handle{Store: 0xa1, Gen: 12, Offset: 4096, Size: 6400, Slot: 2},
	})
	// Output:
	// delivery(talker->vocoder request 0000000000000007 seq 3: handle(store a1 slot 2 gen 12: 6400 bytes at 4096))
}

// A producer gets the error for bad labels before anything leaves the process.
func ExampleValidateLabels() {
	fmt.Println(messages.ValidateLabels("chunk-7", map[string]string{"": "eo"}))
	// Output:
	// malformed message: Delivery.attributes: an attribute without a name
}
