package lane

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// maxMessages bounds the messages on one device that streams wait for, together with the closed
// messages that streams have not passed yet.
const maxMessages = 4096

// device is the lane's state of one GPU.
type device struct {
	cudaipc.Device
	uuid    cudaipc.UUID
	watcher *watcher

	// failed is the result of the last poll. The watcher does not call the driver itself: a call
	// may wait for streams, which wait for words that the watcher is to raise.
	failed  atomic.Bool
	polling atomic.Bool
	polls   sync.WaitGroup

	wordsMu sync.Mutex // held while the words are made

	mu       sync.Mutex // guards all below
	words    *words     // nil until the first line
	lineRefs map[*line]int
	streams  []cudaipc.Stream // idle streams of the lane's own
	events   []cudaipc.Event

	stagings     []*staging // that no call fills; a stream may still read them
	stagingsMade int

	closers []func() error // close functions, in the order of creation
}

// pollFailure starts a poll of the device's failure, unless one runs.
func (d *device) pollFailure() {
	if !d.polling.CompareAndSwap(false, true) {
		return
	}
	d.polls.Go(func() {
		if d.Err() != nil {
			d.failed.Store(true)
		}
		d.polling.Store(false)
	})
}

func (d *device) hasFailed() bool { return d.Err() != nil }

// makeWords makes the words with the first line. No lock that the watcher takes is held during a
// call of the driver, here and below.
func (d *device) makeWords() error {
	d.wordsMu.Lock()
	defer d.wordsMu.Unlock()
	d.mu.Lock()
	made := d.words != nil
	d.mu.Unlock()
	if made {
		return nil
	}
	w, err := newWords(d.Device, maxMessages)
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.words = w
	d.closers = append(d.closers, w.close)
	return nil
}

// takeLine takes the words of one message.
func (d *device) takeLine() (*line, error) {
	if err := d.makeWords(); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	l := d.words.takeLine()
	if l == nil {
		return nil, fmt.Errorf("%w: %d on %v: close messages that are done", ErrTooMany, maxMessages, d.uuid)
	}
	d.lineRefs[l] = 1
	return l, nil
}

func (d *device) holdLine(l *line) {
	d.mu.Lock()
	d.lineRefs[l]++
	d.mu.Unlock()
}

func (d *device) giveLine(l *line) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lineRefs[l]--; d.lineRefs[l] == 0 {
		delete(d.lineRefs, l)
		d.words.giveLine(l)
	}
}

// takeStream takes an idle stream, or makes one.
func (d *device) takeStream() (cudaipc.Stream, error) {
	if s, ok := takeIdle(d, &d.streams); ok {
		return s, nil
	}
	s, err := d.NewStream()
	if err == nil {
		d.onClose(s.Close)
	}
	return s, err
}

// takeIdle takes an idle object, if there is one.
func takeIdle[T any](d *device, idle *[]T) (one T, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(*idle)
	if n == 0 {
		return one, false
	}
	one = (*idle)[n-1]
	*idle = (*idle)[:n-1]
	return one, true
}

func (d *device) onClose(closeIt func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closers = append(d.closers, closeIt)
}

func (d *device) giveStream(s cudaipc.Stream) {
	d.mu.Lock()
	d.streams = append(d.streams, s)
	d.mu.Unlock()
}

func (d *device) takeEvent() (cudaipc.Event, error) {
	if e, ok := takeIdle(d, &d.events); ok {
		return e, nil
	}
	e, err := d.NewEvent()
	if err == nil {
		d.onClose(e.Close)
	}
	return e, err
}

func (d *device) giveEvent(e cudaipc.Event) {
	d.mu.Lock()
	d.events = append(d.events, e)
	d.mu.Unlock()
}

// orderAfter makes later operations of next wait for the operations that first has now.
func (d *device) orderAfter(next, first cudaipc.Stream) error {
	e, err := d.takeEvent()
	if err != nil {
		return err
	}
	defer d.giveEvent(e) // the wait is for the event's present point
	if err := first.Submit(cudaipc.Op{Kind: cudaipc.OpRecord, Event: e}); err != nil {
		return err
	}
	return next.Submit(cudaipc.Op{Kind: cudaipc.OpAwait, Event: e})
}

// waitOnOwnStream makes s wait for op, a wait that has ended when over returns true. The wait
// itself runs on a stream of the lane.
func (d *device) waitOnOwnStream(s cudaipc.Stream, op cudaipc.Op, over func() bool) error {
	own, err := d.takeStream()
	if err != nil {
		return err
	}
	err = own.Submit(op)
	// The stream becomes idle only after the wait: later users would wait for it, too.
	d.watcher.add(d, over, func() { d.giveStream(own) })
	if err != nil {
		return err
	}
	return d.orderAfter(s, own)
}

// whenPassed calls then when the streams have done their present operations, or the device has
// failed and they run no more.
func (d *device) whenPassed(streams []cudaipc.Stream, then func()) error {
	l, err := d.takeLine()
	if err == nil {
		if err = d.submitAck(streams, l); err != nil {
			d.giveLine(l)
		}
	}
	if err != nil {
		return d.whenSynchronized(streams, then, err)
	}
	d.watcher.add(d, reached(l.ack, l.seq), func() {
		d.giveLine(l)
		go then() // closing handles takes long
	})
	return nil
}

// whenSynchronized calls then when the streams are synchronized, for a reason why no word can
// report that. It returns nil if the device has failed, or if the reason is a lack of words; other
// errors are returned.
func (d *device) whenSynchronized(streams []cudaipc.Stream, then func(), reason error) error {
	lost := d.hasFailed()
	go func() {
		synchronize(streams)
		then()
	}()
	if lost || errors.Is(reason, ErrTooMany) || errors.Is(reason, cudaipc.ErrUnsupported) {
		return nil
	}
	return fmt.Errorf("end of tensors on %v: %w", d.uuid, reason)
}

// synchronize waits for streams. Streams that fail or were closed run no more.
func synchronize(streams []cudaipc.Stream) {
	for _, s := range streams {
		_ = s.Synchronize(context.Background())
	}
}

func (d *device) submitAck(streams []cudaipc.Stream, l *line) error {
	ack := cudaipc.Op{Kind: cudaipc.OpWrite, Word: l.ack, Value: l.seq}
	if len(streams) == 1 {
		return streams[0].Submit(ack)
	}
	own, err := d.takeStream()
	if err != nil {
		return err
	}
	for _, s := range streams {
		if err == nil {
			err = d.orderAfter(own, s)
		}
	}
	if err == nil {
		err = own.Submit(ack)
	}
	if err == nil { // after an error it may wait for ever, and is closed with the device
		d.watcher.add(d, reached(l.ack, l.seq), func() { d.giveStream(own) })
	}
	return err
}

// close closes the objects of the device, and the device.
func (d *device) close() error {
	d.polls.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		errs = append(errs, d.closers[i]())
	}
	d.closers, d.streams, d.events = nil, nil, nil
	return errors.Join(append(errs, d.Device.Close())...)
}
