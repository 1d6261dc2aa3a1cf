package lane

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Message is a received value, with its tensors in place. Tensors on a GPU may be incomplete: make
// each stream that reads them wait ([Message.Await]), or wait for them ([Message.Wait]). After the
// last use was submitted, close the message: its memory is released when the streams have passed
// that point.
//
// A Message is safe for concurrent use.
type Message struct {
	lane    *Lane
	bundle  *bundle.Bundle
	size    int // size of the payload
	value   any
	tensors []*Tensor // by their index in the bundle; nil: in the payload
	gates   []*gate

	mu        sync.Mutex
	readers   []cudaipc.Stream // streams that wait for the tensors or read them
	closed    bool
	onSettled []func() // called after the last read
	settled   bool
}

// Open reads a payload that is a bundle, and maps the memory of its tensors. The caller keeps the
// payload, unchanged, until the message is closed and settled. When ctx ends while Open looks up
// memory of another process, the error is the context's. A malformed payload is a
// [*codec.PayloadError] or [ErrForged].
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

// build decodes the value, with the result of stand for each tensor.
func (m *Message) build(stand func(i int) (any, error)) (v any, err error) {
	i := -1
	err = m.bundle.Decode(&v, func(*bundle.Tensor) (any, error) {
		i++
		return stand(i)
	})
	return v, err
}

// tensorInPlace returns a tensor in place: on a GPU, or in the payload.
func (m *Message) tensorInPlace(i int) (any, error) {
	if t := m.tensors[i]; t != nil {
		return t, nil
	}
	t, _ := m.bundle.Tensors[i].InPayload()
	return t, nil
}

// abandonOpen releases what a failed Open has acquired.
func (m *Message) abandonOpen() {
	for _, g := range m.gates {
		g.close()
	}
	if len(m.bundle.Places) > 0 {
		m.lane.removeMessage()
	}
}

// Value returns the value: nil, bool, int64, uint64, float64, string, []byte, []any,
// map[string]any, [codec.Tensor] for a tensor in the payload and [*Tensor] for one on a GPU. Views
// are valid until the message is closed.
func (m *Message) Value() any { return m.value }

// OnDevice reports whether some of the tensors are on a GPU.
func (m *Message) OnDevice() bool { return len(m.gates) > 0 }

// Wait waits until all tensors are complete. The error is [ErrPoisoned] if they never will be, or
// the context's.
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

// Await makes later operations of a stream wait until all tensors are complete. If they never will
// be, the stream reads garbage: call Err after synchronizing it. The message's memory is not
// released before the stream has passed its position at the Close of the message, so close or end
// the stream after that, or synchronize it before.
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

// Err returns nil, or the reason why the tensors are garbage. The result is final once a stream
// that waited for them is synchronized.
func (m *Message) Err() error {
	for _, g := range m.gates {
		if err := g.err(); err != nil {
			return err
		}
	}
	return nil
}

// Unwrap copies all tensors of the value, those in the payload too, into memory of the caller,
// which alloc makes, and returns the value with the copies. The copies are submitted to s and done
// when it is synchronized; then call Err. The message may be closed at once.
//
// A GPU reads tensors in the payload directly if the memory is registered (see [Lane.Mapped]).
// Otherwise Unwrap copies them through a staging buffer: it waits until all but the last two MiB
// are on the GPU, and so for earlier operations of s.
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

// addReader records that a stream reads the message, or only its payload.
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

// Close declares that the streams of Await read the tensors no further than to their present
// positions, and that no other reader does. It does not wait. Closing again has no effect.
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
	if err != nil { // no word reports that the streams are done
		go func() {
			synchronize(readers)
			m.release()
		}()
		return fmt.Errorf("end of tensors: %w", err)
	}
	return dev.whenPassed(readers, m.release)
}

// OnSettled registers a function that is called once, when the message is closed and no stream
// reads its memory any more: at once, if that is so now. Functions are called one after the other,
// in the order of their registration.
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

// nextOnSettled returns the next function, or nil: the message is settled. Functions that are
// registered during the calls are called last.
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

// release releases everything, after the last stream has read.
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
