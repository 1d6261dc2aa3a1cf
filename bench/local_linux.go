package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
)

// A localBus has its stages in this process, in a row, each of which copies its input. A repetition is a
// stream of the pattern's messages, or a request. localChannels and localActors have the same form.
type localBus struct {
	bus  *bus.Bus
	spec peerSpec
}

func openLocalBus(ctx context.Context, _ Options, spec peerSpec) (side, error) {
	relay := func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(d.Bytes()) }
	var p bus.Pipeline
	for i := range stages {
		p.Stages = append(p.Stages, bus.StageSpec{Name: stageName(i), Handle: relay})
		if i > 0 {
			p.Edges = append(p.Edges, bus.Edge{From: stageName(i - 1), To: stageName(i)})
		}
	}
	b, err := bus.Open(ctx, p, bus.Options{})
	return &localBus{b, spec}, err
}

func (s *localBus) run(ctx context.Context, n int) (time.Duration, error) {
	payload := touched(smallPayload)
	start := time.Now()
	if s.spec.Flight == 0 {
		err := s.stream(ctx, n*s.spec.Pattern.Every, func(in bus.Emitter) error { return in.EmitBytes(payload) })
		return time.Since(start), err
	}
	for range n {
		if err := s.request(ctx, payload); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

// request makes a request of one message.
func (s *localBus) request(ctx context.Context, payload []byte) error {
	r, err := s.bus.Stream(ctx)
	if err != nil {
		return err
	}
	if err := r.Input(ctx).EmitBytes(payload, bus.Last()); err != nil {
		return err
	}
	return receiveAll(ctx, r, 1)
}

// stream makes one request of n messages, which send sends.
func (s *localBus) stream(ctx context.Context, n int, send func(in bus.Emitter) error) error {
	r, err := s.bus.Stream(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	sent := make(chan error, 1)
	go func() { sent <- sendAll(ctx, r, n, send) }()
	err = receiveAll(ctx, r, n)
	if err != nil {
		r.Abort(err) // ends sendAll
	}
	return errors.Join(err, <-sent)
}

func sendAll(ctx context.Context, r *bus.Request, n int, send func(in bus.Emitter) error) error {
	in := r.Input(ctx)
	for range n {
		if err := send(in); err != nil {
			r.Abort(err) // ends receiveAll
			return err
		}
	}
	return r.CloseSend(ctx)
}

// receiveAll reads the results of a request, and requires n of them.
func receiveAll(ctx context.Context, r *bus.Request, n int) error {
	got := 0
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		if err := readAll(d.Bytes()); err != nil {
			return err
		}
		got++
	}
	if got != n {
		return fmt.Errorf("%d messages went in and %d came out", n, got)
	}
	return nil
}

func (s *localBus) close(ctx context.Context) error { return s.bus.Close(ctx) }

// A message is a message of localChannels and localActors: like a delivery, it has a sequence and a
// payload.
type message struct {
	seq     uint64
	payload [smallPayload]byte
}

func newMessage(seq uint64, payload []byte) *message {
	m := &message{seq: seq}
	copy(m.payload[:], payload)
	return m
}

// localChannels are goroutines in a row, with channels of the length of an edge's window
// between them. Each copies a payload into a message of its own, as each stage of the bus
// does.
type localChannels struct {
	in   chan<- *message
	out  <-chan *message
	spec peerSpec
}

func openLocalChannels(_ context.Context, _ Options, spec peerSpec) (side, error) {
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
	return &localChannels{in, out, spec}, nil
}

func (s *localChannels) run(_ context.Context, n int) (took time.Duration, err error) {
	payload := touched(smallPayload)
	start := time.Now()
	if s.spec.Flight > 0 {
		for i := range n {
			s.in <- newMessage(uint64(i), payload)
			err = errors.Join(err, readAll((<-s.out).payload[:]))
		}
		return time.Since(start), err
	}
	messages := n * s.spec.Pattern.Every
	go func() {
		for i := range messages {
			s.in <- newMessage(uint64(i), payload)
		}
	}()
	for range messages {
		err = errors.Join(err, readAll((<-s.out).payload[:]))
	}
	return time.Since(start), err
}

// close ends the goroutines, and waits for the last.
func (s *localChannels) close(context.Context) error {
	close(s.in)
	for range s.out {
	}
	return nil
}

// localActors are actors of protoactor-go, with the mailboxes that it has by default,
// which have no bound.
type localActors struct {
	system *actor.ActorSystem
	first  *actor.PID
	sink   *actor.PID
	spec   peerSpec
	want   int           // messages at the sink; set before the first is sent
	done   chan struct{} // receives when all messages have arrived
}

func openLocalActors(_ context.Context, _ Options, spec peerSpec) (side, error) {
	system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
	s := &localActors{system: system, spec: spec, done: make(chan struct{}, 1)}
	got := 0
	s.sink = system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if _, ok := c.Message().(*message); !ok {
			return
		}
		if got++; got == s.want {
			got = 0
			s.done <- struct{}{}
		}
	}))
	for range stages {
		next := s.first
		s.first = system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
			m, ok := c.Message().(*message)
			switch {
			case !ok:
			case next == nil:
				c.Respond(newMessage(m.seq, m.payload[:]))
			default:
				c.RequestWithCustomSender(next, newMessage(m.seq, m.payload[:]), c.Sender())
			}
		}))
	}
	return s, nil
}

func (s *localActors) run(ctx context.Context, n int) (time.Duration, error) {
	const patience = time.Minute
	payload := touched(smallPayload)
	start := time.Now()
	if s.spec.Flight > 0 {
		for i := range n {
			result, err := s.system.Root.RequestFuture(s.first, newMessage(uint64(i), payload), patience).Result()
			if err != nil {
				return 0, err
			}
			m, ok := result.(*message)
			if !ok {
				return 0, fmt.Errorf("an actor answered with a %T", result)
			}
			if err := readAll(m.payload[:]); err != nil {
				return 0, err
			}
		}
		return time.Since(start), nil
	}
	s.want = n * s.spec.Pattern.Every
	for i := range s.want {
		s.system.Root.RequestWithCustomSender(s.first, newMessage(uint64(i), payload), s.sink)
	}
	select {
	case <-s.done:
		return time.Since(start), nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

func (s *localActors) close(context.Context) error {
	s.system.Shutdown()
	return nil
}
