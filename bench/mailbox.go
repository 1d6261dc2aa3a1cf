package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/actors"
)

// A token is a message: a pointer to one of these is all that is sent.
type token struct{ _ [8]byte }

// A receiver is the work of an actor that never fails.
type receiver func(*token)

func (r receiver) Receive(message any)          { r(message.(*token)) }
func (receiver) Failed(any, *actors.Panic)      {}
func (receiver) Restarted()                     {}
func (receiver) Dropped(any, actors.DropReason) {}

// A mailboxTrial sends tokens through actors and through goroutines.
type mailboxTrial struct {
	system   *actors.System
	channels []chan *token
	count    int // messages in a round
	ours     func(ctx context.Context, n int) error
	baseline func(ctx context.Context, n int) error
}

func newMailboxTrial(count int) *mailboxTrial {
	return &mailboxTrial{system: actors.NewSystem(actors.Options{}), count: count}
}

// spawn starts an actor behind a mailbox of the default capacity.
func (t *mailboxTrial) spawn(name string, r receiver) (*actors.Stage, error) {
	return t.system.Spawn(name, r, actors.StageOptions{})
}

// channel starts a goroutine that calls receive for what comes through a channel
// of the mailbox's capacity.
func (t *mailboxTrial) channel(receive func(*token)) chan<- *token {
	c := make(chan *token, actors.DefaultMailboxCapacity)
	t.channels = append(t.channels, c)
	go func() {
		for m := range c {
			receive(m)
		}
	}()
	return c
}

func (t *mailboxTrial) round(ctx context.Context, swapped bool) ([]sample, error) {
	our, base, err := measureBoth(swapped,
		func() error { return t.ours(ctx, t.count) },
		func() error { return t.baseline(ctx, t.count) })
	if err != nil {
		return nil, err
	}
	return []sample{{our.nsPer(t.count), base.nsPer(t.count)}}, nil
}

func (t *mailboxTrial) close(ctx context.Context) error {
	for _, c := range t.channels {
		close(c)
	}
	return t.system.Close(ctx)
}

// sendersScenario streams from some goroutines to one actor, a stage as the bus
// uses them. The baseline is a goroutine behind a channel of the mailbox's
// capacity. Both count what they receive.
func sendersScenario(senders int) scenario {
	return scenario{
		name:    fmt.Sprintf("mailbox/senders=%d", senders),
		metrics: []metric{{unit: "ns", target: ratioUpTo(1.2)}},
		open: func(ctx context.Context, _ Options) (trial, error) {
			t := newMailboxTrial(1 << 17)
			ours, theirs := newCounter(), newCounter()
			actor, err := t.spawn("sink", func(*token) { ours.add() })
			if err != nil {
				return nil, errors.Join(err, t.close(ctx))
			}
			c := t.channel(func(*token) { theirs.add() })
			t.ours = func(ctx context.Context, n int) error {
				return ours.expect(ctx, n, senders, func(m *token) { actor.Post(m) })
			}
			t.baseline = func(ctx context.Context, n int) error {
				return theirs.expect(ctx, n, senders, func(m *token) { c <- m })
			}
			return t, nil
		},
	}
}

// A counter belongs to the goroutine of its receiver; want is set before the
// first send of a round.
type counter struct {
	want, got int
	done      chan struct{}
}

func newCounter() *counter { return &counter{done: make(chan struct{}, 1)} }

func (c *counter) add() {
	if c.got++; c.got == c.want {
		c.got = 0
		c.done <- struct{}{}
	}
}

// expect has n messages sent, an equal share by each sender, and waits for the
// last to arrive.
func (c *counter) expect(ctx context.Context, n, senders int, send func(*token)) error {
	c.want = n
	var group sync.WaitGroup
	for range senders {
		group.Go(func() {
			m := new(token)
			for range n / senders {
				send(m)
			}
		})
	}
	group.Wait()
	return await(ctx, c.done)
}

func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pingPongScenario has one message go from one actor to another and back. The
// baseline is two goroutines, each behind a channel.
func pingPongScenario() scenario {
	return scenario{
		name:    "mailbox/ping-pong",
		metrics: []metric{{unit: "ns", target: ratioUpTo(2.5)}},
		open: func(ctx context.Context, _ Options) (trial, error) {
			t := newMailboxTrial(1 << 14)
			if err := t.openPingPong(); err != nil {
				return nil, errors.Join(err, t.close(ctx))
			}
			return t, nil
		},
	}
}

func (t *mailboxTrial) openPingPong() error {
	ours, theirs := newCounter(), newCounter()
	// The actors learn of each other after both are there; nothing is sent to
	// them before.
	var ping, pong *actors.Stage
	var err error
	if ping, err = t.spawn("ping", func(m *token) {
		if !ours.over() {
			pong.Post(m)
		}
	}); err != nil {
		return err
	}
	if pong, err = t.spawn("pong", func(m *token) { ping.Post(m) }); err != nil {
		return err
	}
	var there, back chan<- *token
	there = t.channel(func(m *token) { back <- m })
	back = t.channel(func(m *token) {
		if !theirs.over() {
			there <- m
		}
	})
	t.ours = func(ctx context.Context, n int) error {
		ours.want = n + 1 // the first message is no return
		ping.Post(new(token))
		return await(ctx, ours.done)
	}
	t.baseline = func(ctx context.Context, n int) error {
		theirs.want = n + 1
		back <- new(token)
		return await(ctx, theirs.done)
	}
	return nil
}

// over counts a message, and reports whether it was the last.
func (c *counter) over() bool {
	c.add()
	return c.got == 0
}
