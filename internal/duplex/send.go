package duplex

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// ErrBacklog reports a peer that has not read for so long that no more messages
// are kept for it.
var ErrBacklog = errors.New("the peer does not read: too much waits for it")

// frame is a message that waits: its kind and its fields.
type frame struct {
	kind lane.Kind
	body []byte
}

// Send sends a message. It does not wait: what finds no room in the lane is kept
// and follows, in order. It does not keep m. A message that breaks a bound is
// [wire.CodeInvalid]; the other errors are [ErrBacklog] and those that end a lane.
func (d *Duplex) Send(m wire.Message) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var err error
	if d.packed, err = wire.Append(d.packed[:0], m, 0); err != nil {
		return err
	}
	if !d.draining {
		faultpoint.Hit("duplex-before-send")
		err = d.sender.TrySend(lane.Kind(m.Kind()), d.packed[wire.HeaderSize:])
		faultpoint.Hit("duplex-sent")
		if !errors.Is(err, lane.ErrFull) {
			return d.judge(err)
		}
		d.draining = true
		d.running.Add(1)
		go d.drain()
	} else if err = d.sender.Err(); err != nil {
		return err
	}
	if d.bytes+len(d.packed) > backlogBytes {
		return d.judge(fmt.Errorf("%w: %d bytes", ErrBacklog, d.bytes))
	}
	d.backlog = append(d.backlog, frame{lane.Kind(m.Kind()), bytes.Clone(d.packed[wire.HeaderSize:])})
	d.bytes += len(d.packed)
	return nil
}

// TrySend is Send for a message that is to have been sent when it returns: if it
// would have to wait it is [lane.ErrFull], and is not sent.
func (d *Duplex) TrySend(m wire.Message) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.draining {
		return lane.ErrFull
	}
	var err error
	if d.packed, err = wire.Append(d.packed[:0], m, 0); err != nil {
		return err
	}
	return d.judge(d.sender.TrySend(lane.Kind(m.Kind()), d.packed[wire.HeaderSize:]))
}

// judge has Run end with an error of the lane that is the peer's fault, and
// returns it. A message is lost by it, and a lane with one missing is of no use:
// what the peer waits for would never come.
func (d *Duplex) judge(err error) error {
	if errors.Is(err, lane.ErrPeer) || errors.Is(err, ErrBacklog) {
		d.hopeless.CompareAndSwap(nil, &err)
		d.receiver.Fail(err)
	}
	return err
}

// drain sends the backlog as the peer makes room.
func (d *Duplex) drain() {
	defer d.running.Done()
	for {
		next, ok := d.first()
		if !ok {
			return
		}
		err := d.sender.Send(context.Background(), next.kind, next.body)
		if err != nil { // the peer is gone or lies, or this side closes: nobody gets it
			_ = d.judge(err)
			d.drop()
			return
		}
	}
}

// first takes the oldest frame of the backlog; false: there is none, and the
// sender is free.
func (d *Duplex) first() (next frame, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.backlog) == 0 {
		d.draining = false
		return frame{}, false
	}
	next = d.backlog[0]
	d.backlog[0] = frame{}
	d.backlog = d.backlog[1:]
	d.bytes -= len(next.body) + wire.HeaderSize
	return next, true
}

func (d *Duplex) drop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.backlog, d.bytes, d.draining = nil, 0, false
}

// Backlog is how many messages wait for the peer to read.
func (d *Duplex) Backlog() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.backlog)
}
