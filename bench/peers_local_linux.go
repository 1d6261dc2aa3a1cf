package bench

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// localSides are those that need one process only: stages in a row, each of which copies
// what it gets. A repetition is a stream of the pattern's messages, or a request.
func openLocalSide(ctx context.Context, spec peerSpec) (side, error) {
	switch spec.Carrier {
	case byChannels:
		return &localChannels{newChannelLine(), spec}, nil
	case byActors:
		return newLocalActors(spec), nil
	default:
	}
	b, err := openBus(ctx, relay, shmstore.Options{})
	return &localBus{b, spec}, err
}

type localBus struct {
	bus  *bus.Bus
	spec peerSpec
}

func (s *localBus) run(ctx context.Context, n int) (time.Duration, error) {
	payload := touched(smallPayload)
	start := time.Now()
	var err error
	if s.spec.Flight > 0 {
		err = busRequests(ctx, s.bus, n, payload)
	} else {
		var wrong error
		err = busStream(ctx, s.bus, n*s.spec.Pattern.Every,
			func(in bus.Emitter, _ int) error { return in.EmitBytes(payload) },
			func(result []byte) {
				if bad := readAll(result); bad != nil {
					wrong = bad
				}
			})
		if err == nil {
			err = wrong
		}
	}
	return time.Since(start), err
}

func (s *localBus) close(ctx context.Context) error { return s.bus.Close(ctx) }

type localChannels struct {
	line *channelLine
	spec peerSpec
}

func (s *localChannels) run(_ context.Context, n int) (took time.Duration, err error) {
	payload := touched(smallPayload)
	start := time.Now()
	if s.spec.Flight > 0 {
		for range n {
			s.line.trip(payload)
		}
		return time.Since(start), nil
	}
	s.line.stream(n*s.spec.Pattern.Every, func(int) []byte { return payload }, func(result []byte) {
		if bad := readAll(result); bad != nil {
			err = bad
		}
	})
	return time.Since(start), err
}

func (s *localChannels) close(context.Context) error {
	s.line.close()
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
	done   chan struct{} // all are there
}

func newLocalActors(spec peerSpec) *localActors {
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
	return s
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
	err := await(ctx, s.done)
	return time.Since(start), err
}

func (s *localActors) close(context.Context) error {
	s.system.Shutdown()
	return nil
}
