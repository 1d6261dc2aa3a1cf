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

// The keys of an item's map.
const (
	keyRID     = "rid"
	keyShmName = "shm_name"
	keyInputs  = "inputs"
)

// Item is what Get took. It belongs to its getter, who closes it.
type Item struct {
	RID     string
	ShmName string
	// Attempt is how often the item went to a getter that was gone without closing it.
	Attempt int

	queue   *Queue
	request *request
	d       *bus.Delivery
	message *lane.Message
	once    sync.Once
	err     error // of Close
}

// errWithdrawn is for an item whose memory is gone with its producer.
var errWithdrawn = errors.New("tensorqueue: the producer is gone")

// errNoItem is for what is no item, as far as the value goes.
var errNoItem = fmt.Errorf("it is no map of %q, %q and %q", keyRID, keyShmName, keyInputs)

// newItem makes an item of what the owner sent.
func (q *Queue) newItem(ctx context.Context, r *request, d *bus.Delivery) (*Item, error) {
	if d.PayloadCodec() != codec.IDBundle {
		err := readAnswer(d)
		if err == nil {
			err = fmt.Errorf("tensorqueue: the owner says %q to who gets", wordQueued)
		}
		r.close()
		return nil, err
	}
	it := &Item{queue: q, request: r, d: d}
	it.Attempt, _ = strconv.Atoi(d.Attrs[attrAttempt]) // 0 without
	err := it.read(ctx)
	switch {
	case err == nil:
		return it, nil
	case errors.Is(err, lane.ErrNotPublished):
		return nil, errors.Join(errWithdrawn, it.Close())
	case isAtFault(err):
		return nil, fmt.Errorf("%w: %w", ErrItem, errors.Join(err, it.Close()))
	}
	_ = d.Finish(nil) // held here alone
	q.giveBack(r)     // it may do for another
	return nil, err
}

// isAtFault reports whether an item that cannot be opened is to blame for that, and
// not what this process lacks.
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

// inputsOf finds the inputs in an item's value.
func inputsOf(v any) (map[string]any, bool) {
	m, _ := v.(map[string]any)
	inputs, ok := m[keyInputs].(map[string]any)
	return inputs, ok || m[keyInputs] == nil
}

// Inputs are what was put, with the tensors where they are: codec.Tensor in host
// memory, [*lane.Tensor] in a GPU's, in place. They are valid until the item is closed,
// and never to be written to. Those on a GPU may not be complete yet: see Message.
func (it *Item) Inputs() map[string]any {
	inputs, _ := inputsOf(it.message.Value())
	return inputs
}

// Message is for readers of Inputs with streams: [lane.Message.Await] has one wait
// until the tensors are complete, and the item stay until what it was given is done;
// [lane.Message.Err] says whether they were.
func (it *Item) Message() *lane.Message { return it.message }

// Unwrap copies all tensors of Inputs onto a device, into memory that alloc makes,
// and returns the inputs with these, as [lane.Message.Unwrap] does: the copies are done
// when the stream is synchronized. The item may be closed at once.
func (it *Item) Unwrap(stream cudaipc.Stream, device cudaipc.UUID, alloc func(sizeBytes int64) (cudaipc.Ptr, error)) (map[string]any, error) {
	v, err := it.message.Unwrap(stream, device, alloc)
	if err != nil {
		return nil, fmt.Errorf("tensorqueue: unwrap %q: %w", it.RID, err)
	}
	inputs, _ := inputsOf(v)
	return inputs, nil
}

// Close is for when the item is done: nobody else gets it, and its memory goes back
// when the streams that read it are done. A second call does nothing, and returns the
// same.
func (it *Item) Close() error {
	it.once.Do(func() {
		q := it.queue
		err := errors.Join(it.d.Finish(nil), it.request.CloseSend(q.ctx))
		if err != nil && !errors.Is(q.explain(q.ctx, err), ErrClosed) { // nobody to tell, and nobody else gets it
			it.err = fmt.Errorf("tensorqueue: close an item: %w", err)
		}
		q.finishAsync(it.request, func() {})
	})
	return it.err
}
