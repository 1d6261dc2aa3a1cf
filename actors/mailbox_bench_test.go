package actors_test

import (
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/actors"
)

// The benchmarks of this file compare an actor with a goroutine that receives from
// a Go channel of the same size. They report nanoseconds per message (ns/op), the
// same for the channel (channel-ns/op) and the quotient (ratio). Rounds of both
// alternate, so that noise hits both.

const (
	benchCapacity  = actors.DefaultMailboxCapacity
	streamRound    = 1 << 14 // messages in a round that streams
	pingRound      = 1 << 11 // messages in a round with one in flight
	pipelineStages = 4
	manySenders    = 4
)

// token is the message, sent by pointer.
type token struct{ _ [8]byte }

// compare runs b.N messages in rounds of at most size through ours and channel,
// alternately.
func compare(b *testing.B, size int, ours, channel func(n int)) {
	b.Helper()
	ours(size) // grow the stacks, start the workers
	channel(size)
	var mine, theirs time.Duration
	b.ResetTimer()
	for left := b.N; left > 0; left -= size {
		n := min(left, size)
		start := time.Now()
		ours(n)
		middle := time.Now()
		channel(n)
		mine += middle.Sub(start)
		theirs += time.Since(middle)
	}
	b.StopTimer()
	b.ReportMetric(float64(mine.Nanoseconds())/float64(b.N), "ns/op")
	b.ReportMetric(float64(theirs.Nanoseconds())/float64(b.N), "channel-ns/op")
	b.ReportMetric(float64(mine)/float64(theirs), "ratio")
}

// sink counts received messages and signals done when the round is complete. The
// counter belongs to its goroutine: want is set before the round's first send.
type sink struct {
	want, got int
	done      chan struct{}
}

func newSink() *sink { return &sink{done: make(chan struct{}, 1)} }

func (s *sink) receive() {
	if s.got++; s.got == s.want {
		s.got = 0
		s.done <- struct{}{}
	}
}

// round lets senders send n messages altogether and waits for the last.
func (s *sink) round(n, senders int, send func(*token)) {
	s.want = n
	if senders == 1 {
		sendMany(n, send)
	} else {
		var group sync.WaitGroup
		for i := range senders {
			share := n / senders
			if i == 0 {
				share += n % senders
			}
			group.Go(func() { sendMany(share, send) })
		}
		group.Wait()
	}
	<-s.done
}

func sendMany(n int, send func(*token)) {
	t := new(token)
	for range n {
		send(t)
	}
}

// channelTo starts a goroutine that calls receive for each message of the channel.
func channelTo(b *testing.B, receive func(*token)) chan *token {
	c := make(chan *token, benchCapacity)
	b.Cleanup(func() { close(c) })
	go func() {
		for t := range c {
			receive(t)
		}
	}()
	return c
}

// benchHost is an actor system whose actors have the mailbox and the dispatcher
// of this package.
type benchHost struct {
	system     *actor.ActorSystem
	dispatcher *actors.Dispatcher
}

func newBenchHost(b *testing.B) *benchHost {
	b.Helper()
	system := actor.NewActorSystemWithConfig(actor.Configure(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(slog.DiscardHandler)
		})))
	h := &benchHost{system: system, dispatcher: actors.NewDispatcher(nil)}
	b.Cleanup(func() {
		system.Shutdown()
		h.dispatcher.Close()
	})
	return h
}

// spawn starts an actor that calls receive for each token.
func (h *benchHost) spawn(b *testing.B, receive func(actor.Context, *token)) (*actor.PID, *actors.Mailbox) {
	b.Helper()
	mailbox := actors.NewMailbox(actors.MailboxOptions{Capacity: benchCapacity})
	pid := h.system.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
		if t, ok := c.Message().(*token); ok {
			receive(c, t)
		}
	}, actor.WithDispatcher(h.dispatcher), actor.WithMailbox(func() actor.Mailbox { return mailbox })))
	b.Cleanup(func() { _ = h.system.Root.PoisonFuture(pid).Wait() })
	return pid, mailbox
}

func benchmarkSenders(b *testing.B, senders int) {
	run := func(b *testing.B, ours *sink, send func(*token)) {
		theirs := newSink()
		c := channelTo(b, func(*token) { theirs.receive() })
		compare(b, streamRound,
			func(n int) { ours.round(n, senders, send) },
			func(n int) { theirs.round(n, senders, func(t *token) { c <- t }) })
	}
	b.Run("pid", func(b *testing.B) {
		h, ours := newBenchHost(b), newSink()
		pid, _ := h.spawn(b, func(actor.Context, *token) { ours.receive() })
		run(b, ours, func(t *token) { h.system.Root.Send(pid, t) })
	})
	b.Run("mailbox", func(b *testing.B) {
		h, ours := newBenchHost(b), newSink()
		_, mailbox := h.spawn(b, func(actor.Context, *token) { ours.receive() })
		run(b, ours, func(t *token) { mailbox.PostUserMessage(t) })
	})
}

// BenchmarkOneSender streams from one goroutine to one actor.
func BenchmarkOneSender(b *testing.B) { benchmarkSenders(b, 1) }

// BenchmarkFourSenders streams from four goroutines to one actor.
func BenchmarkFourSenders(b *testing.B) { benchmarkSenders(b, manySenders) }

// BenchmarkPingPong sends one message to and fro between two actors, and between
// two goroutines over two channels. An op is a round trip.
func BenchmarkPingPong(b *testing.B) {
	h := newBenchHost(b)
	var left int // belongs to ping's turn
	done := make(chan struct{}, 1)
	var ping, pong *actor.PID
	pong, _ = h.spawn(b, func(c actor.Context, t *token) { c.Send(ping, t) })
	ping, _ = h.spawn(b, func(c actor.Context, t *token) {
		if left--; left < 0 {
			done <- struct{}{}
			return
		}
		c.Send(pong, t)
	})

	theirs := newSink()
	var there, back chan *token
	there = channelTo(b, func(t *token) { back <- t })
	back = channelTo(b, func(t *token) {
		if theirs.got++; theirs.got > theirs.want {
			theirs.got = 0
			theirs.done <- struct{}{}
			return
		}
		there <- t
	})
	compare(b, pingRound,
		func(n int) {
			left = n
			h.system.Root.Send(ping, new(token))
			<-done
		},
		func(n int) {
			theirs.want = n
			back <- new(token)
			<-theirs.done
		})
}

// pipelines builds a chain of actors and one of goroutines over channels, both
// of pipelineStages, and returns the functions that send to their first stages.
// Their last stages call ours and theirs.
func pipelines(b *testing.B, ours, theirs func(*token)) (toActor, toChannel func(*token)) {
	h := newBenchHost(b)
	first, _ := h.spawn(b, func(_ actor.Context, t *token) { ours(t) })
	channel := channelTo(b, theirs)
	for range pipelineStages - 1 {
		nextActor, nextChannel := first, channel
		first, _ = h.spawn(b, func(c actor.Context, t *token) { c.Send(nextActor, t) })
		channel = channelTo(b, func(t *token) { nextChannel <- t })
	}
	return func(t *token) { h.system.Root.Send(first, t) }, func(t *token) { channel <- t }
}

// BenchmarkPipelineStreaming streams through four stages. An op is one message
// through all of them.
func BenchmarkPipelineStreaming(b *testing.B) {
	ours, theirs := newSink(), newSink()
	toActor, toChannel := pipelines(b,
		func(*token) { ours.receive() },
		func(*token) { theirs.receive() })
	compare(b, streamRound,
		func(n int) { ours.round(n, 1, toActor) },
		func(n int) { theirs.round(n, 1, toChannel) })
}

// BenchmarkPipelineOneInFlight sends a message when the previous one has left the
// last of four stages. An op is one message through all of them.
func BenchmarkPipelineOneInFlight(b *testing.B) {
	ours, theirs := make(chan *token, 1), make(chan *token, 1)
	toActor, toChannel := pipelines(b,
		func(t *token) { ours <- t },
		func(t *token) { theirs <- t })
	oneByOne := func(send func(*token), out <-chan *token) func(int) {
		return func(n int) {
			t := new(token)
			for range n {
				send(t)
				t = <-out
			}
		}
	}
	compare(b, pingRound, oneByOne(toActor, ours), oneByOne(toChannel, theirs))
}
