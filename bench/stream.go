package bench

import (
	"context"
	"encoding/binary"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A streamTrial streams small messages through four stages that copy each, in
// one request. The baseline is a channelLine. Both are full all the time, and a
// latency is that of a message in the crowd: mostly waiting in windows.
type streamTrial struct {
	bus      *bus.Bus
	channels *channelLine
}

const (
	streamMessages = 20_000 // in a round
	sampleEvery    = 64     // messages, of which one carries the time
)

func streamScenario() scenario {
	return scenario{
		name: "bus/stream/size=" + sizeName(smallPayload),
		metrics: []metric{
			{name: "message", unit: "ns", target: ratioUpTo(2)},
			{name: "latency-p50", unit: "µs"},
			{name: "latency-p99", unit: "µs"},
			{name: "allocs", unit: "allocs/delivery", target: valueUpTo(2)},
		},
		open: func(ctx context.Context, _ Options) (trial, error) {
			b, err := openBus(ctx, relay, shmstore.Options{})
			if err != nil {
				return nil, err
			}
			return &streamTrial{bus: b, channels: newChannelLine()}, nil
		},
	}
}

func (t *streamTrial) round(ctx context.Context, swapped bool) ([]sample, error) {
	ours, theirs := newLatencies(), newLatencies()
	our, base, err := measureBoth(swapped,
		func() error {
			return busStream(ctx, t.bus, streamMessages,
				func(in bus.Emitter, i int) error { return in.EmitBytes(ours.stamp(i)) }, ours.read)
		},
		func() error {
			t.channels.stream(streamMessages, theirs.stamp, theirs.read)
			return nil
		})
	if err != nil {
		return nil, err
	}
	deliveries := streamMessages * deliveriesPerMessage
	return []sample{
		{our.nsPer(streamMessages), base.nsPer(streamMessages)},
		{quantile(ours.micros, 0.50), quantile(theirs.micros, 0.50)},
		{quantile(ours.micros, 0.99), quantile(theirs.micros, 0.99)},
		{our.allocsPer(deliveries), base.allocsPer(deliveries)},
	}, nil
}

func (t *streamTrial) close(ctx context.Context) error {
	t.channels.close()
	return t.bus.Close(ctx)
}

// latencies samples how long messages are under way. The sender's goroutine
// stamps, the receiver's reads.
type latencies struct {
	start   time.Time
	payload [smallPayload]byte
	micros  []float64
}

func newLatencies() *latencies {
	return &latencies{start: time.Now(), micros: make([]float64, 0, streamMessages/sampleEvery+1)}
}

// stamp returns the payload of the i-th message, valid until the next. It begins
// with the time, or with zero.
func (l *latencies) stamp(i int) []byte {
	var at time.Duration
	if i%sampleEvery == 0 {
		at = time.Since(l.start)
	}
	binary.LittleEndian.PutUint64(l.payload[:], uint64(at))
	return l.payload[:]
}

func (l *latencies) read(payload []byte) {
	if at := time.Duration(binary.LittleEndian.Uint64(payload)); at != 0 {
		took := time.Since(l.start) - at
		l.micros = append(l.micros, float64(took.Nanoseconds())/1000)
	}
}
