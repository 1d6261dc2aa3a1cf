package bench

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// An inFlightTrial sends a small message through four stages that copy it, and
// the next when that one has come back: once as a request of its own each, and
// once as the inputs of one open request. The baseline is a channelLine.
type inFlightTrial struct {
	bus      *bus.Bus
	channels *channelLine
	payload  [smallPayload]byte
}

// trips is how many messages make a round.
const trips = 2000

func inFlightScenario() scenario {
	return scenario{
		name: "bus/one-in-flight",
		metrics: []metric{
			{name: "request", unit: "µs", target: ratioUpTo(3)},
			{name: "message", unit: "µs", target: ratioUpTo(3)},
		},
		open: func(ctx context.Context, _ Options) (trial, error) {
			b, err := openBus(ctx, relay, shmstore.Options{})
			if err != nil {
				return nil, err
			}
			return &inFlightTrial{bus: b, channels: newChannelLine()}, nil
		},
	}
}

func (t *inFlightTrial) round(ctx context.Context, swapped bool) ([]sample, error) {
	var samples []sample
	for _, ours := range []func(context.Context) error{t.requests, t.messages} {
		our, base, err := measureBoth(swapped, func() error { return ours(ctx) }, t.baseline)
		if err != nil {
			return nil, err
		}
		samples = append(samples, sample{our.microsPer(trips), base.microsPer(trips)})
	}
	return samples, nil
}

// requests opens a request for each message.
func (t *inFlightTrial) requests(ctx context.Context) error {
	return busRequests(ctx, t.bus, trips, t.payload[:])
}

// busRequests makes n requests of one message, one after the other.
func busRequests(ctx context.Context, b *bus.Bus, n int, payload []byte) error {
	for range n {
		r, err := b.Stream(ctx)
		if err != nil {
			return err
		}
		if err := r.Input(ctx).EmitBytes(payload, bus.Last()); err != nil {
			return err
		}
		got := 0
		for _, err := range r.Results(ctx) {
			if err != nil {
				return err
			}
			got++
		}
		if got != 1 {
			return fmt.Errorf("a request of one message has %d results", got)
		}
	}
	return nil
}

// messages sends one message after the other in an open request.
func (t *inFlightTrial) messages(ctx context.Context) error {
	r, err := t.bus.Stream(ctx)
	if err != nil {
		return err
	}
	defer r.Close()
	in := r.Input(ctx)
	for range trips {
		if err := in.EmitBytes(t.payload[:]); err != nil {
			return err
		}
		d, err := r.Recv(ctx)
		if err != nil {
			return err
		}
		if err := d.Finish(nil); err != nil {
			return err
		}
	}
	return nil
}

func (t *inFlightTrial) baseline() error {
	for range trips {
		t.channels.trip(t.payload[:])
	}
	return nil
}

func (t *inFlightTrial) close(ctx context.Context) error {
	t.channels.close()
	return t.bus.Close(ctx)
}
