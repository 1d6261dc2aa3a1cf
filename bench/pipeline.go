package bench

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// smallPayload is the size of the messages of pipelines whose own cost is
// measured, in bytes.
const smallPayload = 64

// deliveriesPerMessage is how often a message is delivered on its way through a
// pipeline: to each stage, and to the caller.
const deliveriesPerMessage = stages + 1

// relay is a stage that copies what it gets, as one does that computes something
// small.
func relay(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(d.Bytes()) }

// forward is a stage that passes on what it gets by reference.
func forward(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }

// openBus starts a bus of stages in a row that all do the same.
func openBus(ctx context.Context, handle bus.Handler, store shmstore.Options) (*bus.Bus, error) {
	var p bus.Pipeline
	for i := range stages {
		p.Stages = append(p.Stages, bus.StageSpec{Name: fmt.Sprintf("s%d", i), Handle: handle})
		if i > 0 {
			p.Edges = append(p.Edges, bus.Edge{From: p.Stages[i-1].Name, To: p.Stages[i].Name})
		}
	}
	return bus.Open(ctx, p, bus.Options{Store: store})
}

// busStream sends one request of n inputs through b and receives its results.
// send fills and sends the i-th input; received may be nil.
func busStream(ctx context.Context, b *bus.Bus, n int, send func(in bus.Emitter, i int) error, received func(payload []byte)) error {
	r, err := b.Stream(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	sent := make(chan error, 1)
	go func() { sent <- sendAll(ctx, r, n, send) }()
	got := 0
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		if received != nil {
			received(d.Bytes())
		}
		got++
	}
	if err := <-sent; err != nil {
		return err
	}
	if got != n {
		return fmt.Errorf("%d messages went in and %d came out", n, got)
	}
	return nil
}

func sendAll(ctx context.Context, r *bus.Request, n int, send func(in bus.Emitter, i int) error) error {
	in := r.Input(ctx)
	for i := range n {
		if err := send(in, i); err != nil {
			r.Abort(err) // so that nobody waits for the rest
			return err
		}
	}
	return r.CloseSend(ctx)
}

// A message is what travels through a channelLine: like a delivery, it has a
// number and carries its payload.
type message struct {
	seq     uint64
	payload [smallPayload]byte
}

// A channelLine is the baseline of the bus: goroutines in a row, with channels
// of the length of an edge's window between them. Everybody who sends a payload
// copies it into a message of its own, as every stage of the bus does, so that
// it may go on using what it received.
type channelLine struct {
	in  chan<- *message
	out <-chan *message
}

func newChannelLine() *channelLine {
	in := make(chan *message, bus.DefaultWindow)
	out := in
	for range stages {
		from, to := out, make(chan *message, bus.DefaultWindow)
		out = to
		go func() {
			for m := range from {
				to <- newMessage(m.seq, m.payload[:])
			}
			close(to)
		}()
	}
	return &channelLine{in: in, out: out}
}

func newMessage(seq uint64, payload []byte) *message {
	m := &message{seq: seq}
	copy(m.payload[:], payload)
	return m
}

// stream sends n messages, on a goroutine of its own, and receives them.
func (c *channelLine) stream(n int, send func(i int) []byte, received func(payload []byte)) {
	go func() {
		for i := range n {
			c.in <- newMessage(uint64(i), send(i))
		}
	}()
	for range n {
		received((<-c.out).payload[:])
	}
}

// trip sends one message and receives it.
func (c *channelLine) trip(payload []byte) {
	c.in <- newMessage(0, payload)
	<-c.out
}

// close ends the goroutines, which hold nothing, and waits for the last.
func (c *channelLine) close() {
	close(c.in)
	for range c.out {
	}
}
