package lane

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Message is a value that was received, with its tensors where they are. Those on
// a GPU may not be complete yet: have each stream that reads them wait ([Message.Await]),
// or wait for them ([Message.Wait]). When the last use has been submitted, close
// the message: its memory is given back when the streams have come that far.
//
// A Message is safe for concurrent use.
type Message struct {
	lane    *Lane
	bundle  *bundle.Bundle
	size    int // of the payload
	value   any
	tensors []*Tensor // by their place in the bundle; nil: in the payload
	gates   []*gate

	mu        sync.Mutex
	readers   []cudaipc.Stream // those that were told to wait
	closed    bool
	onSettled []func() // called when nothing is read any more
	settled   bool
}

// Open reads a payload that is a bundle, and maps what its tensors lie in. The
// payload stays, and is not written to, until the message is closed and settled.
// When ctx ends while memory of another process is looked for, the error is the
// context's. A payload that makes no sense is a [*codec.PayloadError] or
// [ErrForged].
func (l *Lane) Open(ctx context.Context, payload []byte) (*Message, error) {
	b, err := bundle.Open(payload)
	if err != nil {
		return nil, err
	}
	m := &Message{lane: l, bundle: b, size: len(payload), tensors: make([]*Tensor, len(b.Tensors))}
	if len(b.Places) > 0 {
		if err := l.addMessage(); err != nil {
			return nil, err
		}
	}
	for _, p := range b.Places {
		g, err := l.openGate(ctx, p)
		if err != nil {
			m.abandonOpen()
			return nil, err
		}
		m.gates = append(m.gates, g)
	}
	for i := range b.Tensors {
		if t := &b.Tensors[i]; t.Place != 0 {
			g := m.gates[t.Place-1]
			m.tensors[i] = &Tensor{DType: t.DType, Shape: t.Shape, Strides: t.Strides, Device: g.dev.uuid, Ptr: g.base + cudaipc.Ptr(t.Offset)}
		}
	}
	if m.value, err = m.build(m.tensorInPlace); err != nil {
		m.abandonOpen()
		return nil, err
	}
	return m, nil
}

// build makes the value, with what stands for each tensor.
func (m *Message) build(stand func(i int) (any, error)) (v any, err error) {
	i := -1
	err = m.bundle.Decode(&v, func(*bundle.Tensor) (any, error) {
		i++
		return stand(i)
	})
	return v, err
}

// tensorInPlace is a tensor where it is: on a GPU, or in the payload.
func (m *Message) tensorInPlace(i int) (any, error) {
	if t := m.tensors[i]; t != nil {
		return t, nil
	}
	t, _ := m.bundle.Tensors[i].InPayload()
	return t, nil
}

// abandonOpen takes back an Open that failed.
func (m *Message) abandonOpen() {
	for _, g := range m.gates {
		g.close()
	}
	if len(m.bundle.Places) > 0 {
		m.lane.removeMessage()
	}
}

// Value is what was sent: nil, bool, int64, uint64, float64, string, []byte,
// []any, map[string]any, [codec.Tensor] for a tensor in the payload and [*Tensor]
// for one on a GPU. What is a view is valid until the message is closed.
func (m *Message) Value() any { return m.value }

// OnDevice reports whether some of the tensors are on a GPU.
func (m *Message) OnDevice() bool { return len(m.gates) > 0 }

// Wait waits until all tensors are complete. The error is [ErrPoisoned] if they
// never will be, or the context's.
func (m *Message) Wait(ctx context.Context) error {
	m.mu.Lock()
	closed := m.closed
	m.mu.Unlock()
	if closed {
		return fmt.Errorf("wait for tensors: %w", errMessageClosed)
	}
	for _, g := range m.gates {
		if err := g.wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Await has a stream wait until all tensors are complete, before anything that is
// submitted to it later. What the stream reads of them is garbage if they never
// will be: once it is synchronized, ask Err. The message is not given back
// before the stream has come as far as it is when the message is closed, so the
// stream is closed after that, or synchronized before.
func (m *Message) Await(s cudaipc.Stream) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("await tensors: %w", errMessageClosed)
	}
	for _, g := range m.gates {
		if err := g.await(s); err != nil {
			return err
		}
	}
	if !slices.Contains(m.readers, s) && len(m.gates) > 0 {
		m.readers = append(m.readers, s)
	}
	return nil
}

// Err is nil, or why what was read of the tensors is garbage. It is certain once
// a stream that waited for them is synchronized.
func (m *Message) Err() error {
	for _, g := range m.gates {
		if err := g.err(); err != nil {
			return err
		}
	}
	return nil
}

// Unwrap copies all tensors of the value, those in the payload too, into memory
// of the caller's, which alloc makes, and returns the value with these. The copies
// are submitted to s and done when it is synchronized; then ask Err. The message
// may be closed at once.
//
// What lies in the payload a GPU reads there if it was told of the memory (see
// [Lane.Mapped]). Otherwise Unwrap copies it through a staging buffer: it waits until
// all but the last two MiB are on the GPU, and so for what s was given before.
func (m *Message) Unwrap(s cudaipc.Stream, device cudaipc.UUID, alloc func(sizeBytes int64) (cudaipc.Ptr, error)) (any, error) {
	dev, err := m.lane.device(device)
	if err != nil {
		return nil, err
	}
	if err := m.Await(s); err != nil {
		return nil, err
	}
	var u unwrapping
	v, err := m.build(func(i int) (any, error) { return u.tensor(m, dev, i, device, alloc) })
	if err != nil {
		return nil, err
	}
	if len(u.ops) > 0 {
		if err := m.addReader(s); err != nil {
			return nil, err
		}
		if err := s.Submit(u.ops...); err != nil {
			return nil, err
		}
	}
	return v, m.copyStaged(dev, s, u.staged)
}

// addReader notes that a stream reads the message, be it the payload alone.
func (m *Message) addReader(s cudaipc.Stream) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return fmt.Errorf("read tensors: %w", errMessageClosed)
	}
	if !slices.Contains(m.readers, s) {
		m.readers = append(m.readers, s)
	}
	return nil
}

// Close says that the streams which were told to wait read the tensors no
// further than to where they are now, and that nobody else does. It does not wait.
// Closing again does nothing.
func (m *Message) Close() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	readers := m.readers
	m.mu.Unlock()
	if len(readers) == 0 {
		m.release()
		return nil
	}
	dev, err := m.lane.deviceOf(m.gates)
	if err != nil { // no word says when the streams are done
		go func() {
			synchronize(readers)
			m.release()
		}()
		return fmt.Errorf("end of tensors: %w", err)
	}
	return dev.whenPassed(readers, m.release)
}

// OnSettled has f called once, when the message is closed and nothing reads its
// memory any more: at once, if that is so now. Functions are called one after the
// other, as they came.
func (m *Message) OnSettled(f func()) {
	m.mu.Lock()
	settled := m.settled
	if !settled {
		m.onSettled = append(m.onSettled, f)
	}
	m.mu.Unlock()
	if settled {
		f()
	}
}

// nextOnSettled is what is to be called next, or nil: the message is settled. What comes
// while others are called is called behind them.
func (m *Message) nextOnSettled() (f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.onSettled) == 0 {
		m.settled = true
		return nil
	}
	f, m.onSettled = m.onSettled[0], m.onSettled[1:]
	return f
}

// release gives everything back: no stream reads it any more.
func (m *Message) release() {
	for _, g := range m.gates {
		g.close()
	}
	for f := m.nextOnSettled(); f != nil; f = m.nextOnSettled() {
		f()
	}
	if len(m.bundle.Places) > 0 {
		m.lane.removeMessage()
	}
}
