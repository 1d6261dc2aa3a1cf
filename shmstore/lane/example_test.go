package lane_test

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// A lane within one process. Between two, each side maps its own segment
// writable and the other's read-only, and the wakers are Events.
func Example() {
	geo, err := lane.Layout(1, 1<<16)
	if err != nil {
		panic(err)
	}
	mine, theirs := geo.HeapSegments()
	sending, receiving := lane.ChannelWakers()
	s, err := lane.NewSender(geo, mine, theirs, sending, lane.Options{})
	if err != nil {
		panic(err)
	}
	r, err := lane.NewReceiver(geo, theirs, mine, receiving, lane.Options{})
	if err != nil {
		panic(err)
	}

	ctx := context.Background()
	go func() {
		_ = s.Send(ctx, 1, []byte("to "), []byte("whom"))
		// Built in place, and published together.
		for i := range 2 {
			if room, err := s.Reserve(16); err == nil {
				s.Commit(2, len(fmt.Appendf(room[:0], "number %d", i)))
			}
		}
		s.Publish()
		r.Fail(nil) // as whoever watches the sender does when it is gone
	}()

	for r.Wait(ctx) == nil {
		for frame, kind, ok := r.Next(); ok; frame, kind, ok = r.Next() {
			fmt.Printf("%d: %s\n", kind, frame)
		}
		r.Advance()
	}
	fmt.Println(r.Err())
	// Output:
	// 1: to whom
	// 2: number 0
	// 2: number 1
	// the peer of the lane is gone
}
