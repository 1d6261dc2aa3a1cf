package wire_test

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Two messages share a packet; the reader takes them one by one.
func Example() {
	var packet []byte
	for _, m := range []wire.Message{
		&wire.Finish{Delivery: 7},
		&wire.Ended{Task: 3, Code: wire.CodeMemory, Text: "no room for the audio"},
	} {
		var err error
		if packet, err = wire.Append(packet, m, 0); err != nil {
			fmt.Println(err)
			return
		}
	}
	for len(packet) > 0 {
		header, body, rest, err := wire.Next(packet)
		if err != nil {
			fmt.Println(err)
			return
		}
		message, err := wire.Parse(header, body)
		if err != nil {
			fmt.Println(err)
			return
		}
		switch m := message.(type) {
		case *wire.Finish:
			fmt.Println("delivery", m.Delivery, "is finished:", m.Code)
		case *wire.Ended:
			fmt.Println("task", m.Task, "has ended:", &wire.Error{Code: m.Code, Text: m.Text})
		}
		packet = rest
	}
	// Output:
	// delivery 7 is finished: ok
	// task 3 has ended: memory: no room for the audio
}
