package bench

import (
	"context"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A forwardTrial streams large payloads through four stages. The sender fills
// each in the store, once, and the stages pass it on by reference.
//
// The baseline is that one copy alone: from the same source to heap memory of
// the store's size, at one place after the other.
type forwardTrial struct {
	bus    *bus.Bus
	source []byte
	heap   *heapRing
}

const (
	forwardPayload  = mib
	forwardMessages = 128 // in a round
)

func forwardScenario() scenario {
	return scenario{
		name:    "bus/stream/size=" + sizeName(forwardPayload),
		metrics: []metric{{name: "message", unit: "µs", target: ratioUpTo(1.1)}},
		needs:   64 * forwardPayload, // some for the window of each edge
		open: func(ctx context.Context, opts Options) (trial, error) {
			b, err := openBus(ctx, forward, shmstore.Options{ArenaBytes: opts.StoreBytes})
			if err != nil {
				return nil, err
			}
			return &forwardTrial{
				bus:    b,
				source: touched(forwardPayload),
				heap:   newHeapRing(opts.StoreBytes, forwardPayload),
			}, nil
		},
	}
}

func (t *forwardTrial) round(ctx context.Context, swapped bool) ([]sample, error) {
	our, base, err := measureBoth(swapped,
		func() error { return busStream(ctx, t.bus, forwardMessages, t.send, nil) },
		func() error {
			for range forwardMessages {
				codec.Copy(t.heap.next(), t.source)
			}
			return nil
		})
	if err != nil {
		return nil, err
	}
	return []sample{{our.microsPer(forwardMessages), base.microsPer(forwardMessages)}}, nil
}

func (t *forwardTrial) send(in bus.Emitter, _ int) error {
	buffer, err := in.Reserve(forwardPayload, codec.IDRaw)
	if err != nil {
		return err
	}
	codec.Copy(buffer.Bytes(), t.source)
	return buffer.Send(forwardPayload)
}

func (t *forwardTrial) close(ctx context.Context) error { return t.bus.Close(ctx) }
