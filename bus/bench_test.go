package bus_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const benchStages = 4

// relay passes a small payload on, copying it into the next delivery as a
// stage that computes something small does.
func relay(name string) bus.StageSpec {
	return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error {
		return t.EmitBytes(d.Bytes())
	}}
}

func relays(n int) bus.Pipeline {
	var stages []bus.StageSpec
	for i := range n {
		stages = append(stages, relay(fmt.Sprintf("s%d", i)))
	}
	return linear(stages...)
}

type message struct {
	seq  int
	data [64]byte
}

// channelStream sends n messages through four goroutines.
func channelStream(n int) time.Duration {
	chans := make([]chan *message, benchStages+1)
	for i := range chans {
		chans[i] = make(chan *message, bus.DefaultWindow)
	}
	for i := range benchStages {
		go func() {
			for m := range chans[i] {
				out := &message{seq: m.seq}
				copy(out.data[:], m.data[:])
				chans[i+1] <- out
			}
			close(chans[i+1])
		}()
	}
	began := time.Now()
	go func() {
		var payload [64]byte
		for i := range n {
			m := &message{seq: i}
			copy(m.data[:], payload[:])
			chans[0] <- m
		}
		close(chans[0])
	}()
	for range chans[benchStages] {
	}
	return time.Since(began)
}

func busStream(b testing.TB, bs *bus.Bus, n int, payload []byte) time.Duration {
	ctx := context.Background()
	r, err := bs.Stream(ctx)
	if err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	go func() {
		in := r.Input(ctx)
		for range n {
			if err := in.EmitBytes(payload); err != nil {
				b.Error(err)
				return
			}
		}
		if err := r.CloseSend(ctx); err != nil {
			b.Error(err)
		}
	}()
	got := 0
	for _, err := range r.Results(ctx) {
		if err != nil {
			b.Fatal(err)
		}
		got++
	}
	if got != n {
		b.Fatalf("%d of %d", got, n)
	}
	return time.Since(began)
}

func BenchmarkStream64B(b *testing.B) {
	bs := open(b, relays(benchStages), bus.Options{})
	payload := make([]byte, 64)
	busStream(b, bs, 1000, payload)
	const round = 50_000
	var ours, theirs time.Duration
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		theirs += channelStream(round)
		ours += busStream(b, bs, round, payload)
		n += round
	}
	b.ReportMetric(float64(ours.Nanoseconds())/float64(n), "ns/msg")
	b.ReportMetric(float64(theirs.Nanoseconds())/float64(n), "chan-ns/msg")
	b.ReportMetric(ours.Seconds()/theirs.Seconds(), "ratio")
}

func BenchmarkRoundTrip(b *testing.B) {
	bs := open(b, relays(benchStages), bus.Options{})
	ctx := context.Background()
	payload := make([]byte, 64)
	const round = 2000
	var ours, theirs, requests time.Duration
	n := 0
	for b.Loop() {
		theirs += channelPing(round)
		r, err := bs.Stream(ctx)
		if err != nil {
			b.Fatal(err)
		}
		began := time.Now()
		in := r.Input(ctx)
		for range round {
			if err := in.EmitBytes(payload); err != nil {
				b.Fatal(err)
			}
			d, err := r.Recv(ctx)
			if err != nil {
				b.Fatal(err)
			}
			_ = d.Finish(nil)
		}
		ours += time.Since(began)
		r.Close()
		began = time.Now()
		for range round {
			r, err := bs.Stream(ctx)
			if err != nil {
				b.Fatal(err)
			}
			if err := r.Input(ctx).EmitBytes(payload, bus.Last()); err != nil {
				b.Fatal(err)
			}
			for _, err := range r.Results(ctx) {
				if err != nil {
					b.Fatal(err)
				}
			}
		}
		requests += time.Since(began)
		n += round
	}
	b.ReportMetric(float64(ours.Nanoseconds())/float64(n), "ns/trip")
	b.ReportMetric(float64(requests.Nanoseconds())/float64(n), "ns/request")
	b.ReportMetric(float64(theirs.Nanoseconds())/float64(n), "chan-ns/trip")
	b.ReportMetric(ours.Seconds()/theirs.Seconds(), "trip-ratio")
	b.ReportMetric(requests.Seconds()/theirs.Seconds(), "request-ratio")
}

func channelPing(n int) time.Duration {
	chans := make([]chan *message, benchStages+1)
	for i := range chans {
		chans[i] = make(chan *message, 1)
	}
	for i := range benchStages {
		go func() {
			for m := range chans[i] {
				chans[i+1] <- m
			}
			close(chans[i+1])
		}()
	}
	began := time.Now()
	for i := range n {
		chans[0] <- &message{seq: i}
		<-chans[benchStages]
	}
	took := time.Since(began)
	close(chans[0])
	return took
}

// BenchmarkStream1MiB fills each payload once and has four stages pass it on.
func BenchmarkStream1MiB(b *testing.B) {
	const size = 1 << 20
	forward := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
	}
	bs := open(b, linear(forward("a"), forward("b"), forward("c"), forward("d")),
		bus.Options{Store: shmstore.Options{ArenaBytes: 256 << 20}})
	ctx := context.Background()
	src := make([]byte, size)
	ring := make([]byte, 256*size) // the footprint of the store
	for i := range ring {
		ring[i] = 1
	}
	const round = 200
	var ours, theirs time.Duration
	n := 0
	for b.Loop() {
		began := time.Now()
		for i := range round {
			copy(ring[i%256*size:][:size], src)
		}
		theirs += time.Since(began)
		r, err := bs.Stream(ctx)
		if err != nil {
			b.Fatal(err)
		}
		began = time.Now()
		go func() {
			in := r.Input(ctx)
			for range round {
				buf, err := in.Reserve(size, codec.IDRaw)
				if err != nil {
					b.Error(err)
					return
				}
				copy(buf.Bytes(), src)
				if err := buf.Send(size); err != nil {
					b.Error(err)
				}
			}
			_ = r.CloseSend(ctx)
		}()
		for _, err := range r.Results(ctx) {
			if err != nil {
				b.Fatal(err)
			}
		}
		ours += time.Since(began)
		n += round
	}
	b.SetBytes(size)
	b.ReportMetric(float64(ours.Microseconds())/float64(n), "µs/msg")
	b.ReportMetric(float64(theirs.Microseconds())/float64(n), "copy-µs/msg")
	b.ReportMetric(ours.Seconds()/theirs.Seconds(), "ratio")
}
