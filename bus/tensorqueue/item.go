package tensorqueue

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// Keys of an item's map.
const (
	keyRID     = "rid"
	keyShmName = "shm_name"
	keyInputs  = "inputs"
)

// Item is an item that Get took. Its getter owns it and must close it.
type Item struct {
	RID     string
	ShmName string
	// Attempt is how often the item went to a getter that departed without closing it.
	Attempt int

	queue   *Queue
	request *request
	d       *bus.Delivery
	message *lane.Message
	once    sync.Once
	err     error // of Close
}

// errWithdrawn reports an item whose memory is gone with its producer.
var errWithdrawn = errors.New("tensorqueue: the producer is gone")

// errNoItem reports a value that is no item.
var errNoItem = fmt.Errorf("it is no map of %q, %q and %q", keyRID, keyShmName, keyInputs)

// newItem makes an item of the owner's answer.
func (q *Queue) newItem(ctx context.Context, r *request, d *bus.Delivery) (*Item, error) {
	if d.PayloadCodec() != codec.IDBundle {
		err := readAnswer(d)
		if err == nil {
			err = fmt.Errorf("tensorqueue: the owner answers a get with %q", wordQueued)
		}
		r.close()
		return nil, err
	}
	it := &Item{queue: q, request: r, d: d}
	it.Attempt, _ = strconv.Atoi(d.Attrs[attrAttempt]) // 0 without the attribute
	err := it.read(ctx)
	switch {
	case err == nil:
		return it, nil
	case errors.Is(err, lane.ErrNotPublished):
		return nil, errors.Join(errWithdrawn, it.Close())
	case isAtFault(err):
		return nil, fmt.Errorf("%w: %w", ErrItem, errors.Join(err, it.Close()))
	}
	_ = d.Finish(nil) // only this process holds it
	q.giveBack(r)     // another process may be able to open it
	return nil, err
}

// isAtFault reports whether the item is to blame for an error, and not a lack in this process.
func isAtFault(err error) bool {
	var payload *codec.PayloadError
	return errors.Is(err, errNoItem) || errors.As(err, &payload) || errors.Is(err, lane.ErrForged)
}

func (it *Item) read(ctx context.Context) (err error) {
	if it.message, err = it.d.Tensors(ctx); err != nil {
		return err
	}
	var rid, name, inputs bool
	m, ok := it.message.Value().(map[string]any)
	if ok {
		it.RID, rid = m[keyRID].(string)
		it.ShmName, name = m[keyShmName].(string)
		_, inputs = inputsOf(m)
	}
	if !rid || !name || !inputs {
		return errNoItem
	}
	return nil
}

// inputsOf returns the inputs in an item's value.
func inputsOf(v any) (map[string]any, bool) {
	m, _ := v.(map[string]any)
	inputs, ok := m[keyInputs].(map[string]any)
	return inputs, ok || m[keyInputs] == nil
}

// Inputs returns the inputs that were put, with the tensors in place: codec.Tensor in host memory,
// [*lane.Tensor] in a GPU's memory. They are valid until the item is closed, and must not be written
// to. Tensors on a GPU may not be complete yet: see Message.
func (it *Item) Inputs() map[string]any {
	inputs, _ := inputsOf(it.message.Value())
	return inputs
}

// Message is for readers of Inputs with streams. [lane.Message.Await] makes a stream wait until the
// tensors are complete, and keeps the item until the stream's reads are done; [lane.Message.Err]
// reports whether the tensors were complete.
func (it *Item) Message() *lane.Message { return it.message }

// Unwrap copies all tensors of Inputs to a device, into memory from alloc, and returns the inputs with
// the copies, as [lane.Message.Unwrap] does. The copies are done when the stream is synchronized. The
// item may be closed at once.
func (it *Item) Unwrap(stream cudaipc.Stream, device cudaipc.UUID, alloc func(sizeBytes int64) (cudaipc.Ptr, error)) (map[string]any, error) {
	v, err := it.message.Unwrap(stream, device, alloc)
	if err != nil {
		return nil, fmt.Errorf("tensorqueue: unwrap %q: %w", it.RID, err)
	}
	inputs, _ := inputsOf(v)
	return inputs, nil
}

// Close finishes the item: no other getter gets it, and its memory is released when the streams that
// read it are done. A second call does nothing and returns the same error.
func (it *Item) Close() error {
	it.once.Do(func() {
		q := it.queue
		err := errors.Join(it.d.Finish(nil), it.request.CloseSend(q.ctx))
		if err != nil && !errors.Is(q.explain(q.ctx, err), ErrClosed) { // the owner is gone, and no other getter gets the item
			it.err = fmt.Errorf("tensorqueue: close an item: %w", err)
		}
		q.finishAsync(it.request, func() {})
	})
	return it.err
}
