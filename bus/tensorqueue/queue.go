package tensorqueue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

// Queue is this process's end of a queue. Its methods are safe for concurrent use.
type Queue struct {
	requests interface {
		Stream(ctx context.Context, opts ...bus.SubmitOption) (*bus.Request, error)
	}
	maxSize int

	// Of the owner.
	hub    *hub
	bus    *bus.Bus
	server *host.Server
	// Of a process that joined.
	node *node.Node

	ctx              context.Context // ends with Close
	cancel           context.CancelCauseFunc
	closed           atomic.Bool
	putSlots         chan struct{}                 // capacity putsAtOnce
	unfinishedPuts   pendingCount                  // items of this process that are not done
	unfinishedCloses pendingCount                  // items that were closed or given back, until the owner knows it
	lastGiveBack     atomic.Pointer[chan struct{}] // closed when all items given back so far are in the queue
}

// Open makes a queue that this process owns.
func Open(ctx context.Context, opts Options) (*Queue, error) {
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if opts.Socket == "" {
		var err error
		if opts.Socket, err = node.SocketPath(opts.Name); err != nil {
			return nil, fmt.Errorf("tensorqueue: open: %w", err)
		}
	}
	h := &hub{maxSize: opts.MaxSize}
	b, err := bus.Open(ctx, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: opts.Name, Batch: h.handle, End: h.requestEnded, MaxInflight: opts.requests(), Attempts: -1}},
		Edges: []bus.Edge{
			{To: opts.Name, WindowBytes: opts.MaxItemBytes, Tensors: opts.Transport, TensorMinBytes: opts.TensorMinBytes},
			{From: opts.Name, WindowBytes: opts.MaxItemBytes},
		},
	}, bus.Options{
		Name: opts.Name, Store: opts.store(), Overcommit: true, MaxRequests: opts.requests(), GPU: opts.GPU, Logger: opts.Logger,
		OnStall: func([]bus.Stall) {}, // requests of a queue may wait
	})
	if err != nil {
		return nil, fmt.Errorf("tensorqueue: open: %w", err)
	}
	srv, err := host.Listen(b, opts.Socket, host.ListenOptions{
		AllowUIDs: opts.AllowUIDs,
		Methods:   map[string]func(context.Context, []byte) (any, error){methodSize: h.size},
	})
	if err != nil {
		return nil, fmt.Errorf("tensorqueue: open: %w", errors.Join(err, b.Close(ctx)))
	}
	q := newQueue(opts.MaxSize)
	q.requests, q.hub, q.bus, q.server = b, h, b, srv
	return q, nil
}

// Join connects to a queue that another process has opened. The context bounds the connecting alone.
func Join(ctx context.Context, opts Options) (*Queue, error) {
	opts = opts.withDefaults()
	n, err := node.Join(ctx, "tensorqueue", node.JoinOptions{
		Socket: opts.Socket, Bus: opts.Name, AllowUIDs: opts.AllowUIDs, Store: opts.store(),
		MaxRequests: bus.MaxRequests, GPU: opts.GPU, Logger: opts.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("tensorqueue: join: %w", err)
	}
	q := newQueue(0)
	q.requests, q.node = n, n
	f, err := q.figures(ctx)
	if err != nil {
		return nil, fmt.Errorf("tensorqueue: join: %q is no queue: %w", opts.Name, errors.Join(err, n.Close(ctx)))
	}
	q.maxSize = f.MaxSize
	return q, nil
}

func newQueue(maxSize int) *Queue {
	q := &Queue{maxSize: maxSize, putSlots: make(chan struct{}, putsAtOnce)}
	q.ctx, q.cancel = context.WithCancelCause(context.Background())
	return q
}

// MaxSize returns the queue's bound.
func (q *Queue) MaxSize() int { return q.maxSize }

// Put puts an item: the id of a request, the name of a segment with further data of it, and inputs with
// tensors at any depth: [*lane.Tensor] in a GPU's memory, codec.Tensor in host memory. Inputs may be
// nil. Put returns when the item is in the queue; copies on a GPU may still be running. While the queue
// is full Put waits; if ctx ends meanwhile, the error is a [*FullError]. After an error the item is not
// in the queue.
func (q *Queue) Put(ctx context.Context, rid, shmName string, inputs map[string]any, opts PutOptions) error {
	select {
	case q.putSlots <- struct{}{}:
		defer func() { <-q.putSlots }()
	case <-q.ctx.Done():
		release(opts)
		return ErrClosed
	case <-ctx.Done():
		release(opts)
		return &FullError{MaxSize: q.maxSize, Err: context.Cause(ctx)}
	}
	r, err := q.openRequest(ctx)
	if err != nil {
		release(opts)
		return err
	}
	// From here on the request does not end with the call's context. It could end after the item was
	// sent, and it would be unknown whether a getter has the item.
	if err := r.detach(); err != nil {
		release(opts)
		r.close()
		return q.explain(ctx, err)
	}
	item := map[string]any{keyRID: rid, keyShmName: shmName, keyInputs: nil}
	if inputs != nil {
		item[keyInputs] = inputs
	}
	if err = r.Input(ctx).EmitTensors(item, opts); err == nil {
		err = q.awaitQueued(ctx, r)
	}
	if err == nil && q.ctx.Err() != nil { // Close made the space, and drops the item
		err = ErrClosed
	}
	if err != nil {
		r.close()
		return q.explain(ctx, err)
	}
	q.unfinishedPuts.add(1)
	go func() {
		defer q.unfinishedPuts.add(-1)
		r.finish(q.ctx)
	}()
	return nil
}

func release(opts PutOptions) {
	if opts.Release != nil {
		opts.Release()
	}
}

// awaitQueued waits until the owner has put an item into the queue, or ctx ends. The owner decides
// which came first, since a getter may have the item by then.
func (q *Queue) awaitQueued(ctx context.Context, r *request) error {
	d, err := r.Recv(ctx)
	if err == nil {
		return errors.Join(readAnswer(d), r.CloseSend(q.ctx))
	}
	cause := context.Cause(ctx)
	if cause == nil {
		return err
	}
	full := &FullError{MaxSize: q.maxSize, Err: cause}
	answer, cancel := context.WithTimeout(q.ctx, withdrawTimeout)
	defer cancel()
	if err := r.Send(answer, wordBack, bus.Last()); err != nil {
		return full
	}
	if d, err = r.Recv(answer); err != nil {
		return full
	}
	if err = readAnswer(d); errors.Is(err, ErrFull) {
		return full
	}
	return err
}

// readAnswer returns the error of the owner's answer, which is one word.
func readAnswer(d *bus.Delivery) error {
	var word string
	err := d.Decode(&word)
	if ferr := d.Finish(nil); err == nil {
		err = ferr
	}
	switch {
	case err != nil:
		return err
	case word == wordQueued:
		return nil
	case word == wordFull:
		return ErrFull
	case word == wordClosed:
		return ErrClosed
	case word == wordBusy:
		return ErrBusy
	}
	return fmt.Errorf("tensorqueue: the owner says %q", word)
}

// Get takes the oldest item, and waits for one until ctx ends; the error is then the context's. The
// caller must close the item. An invalid item, [ErrItem], is removed. An item that this process cannot
// open, for lack of the GPU for example, stays in the queue.
func (q *Queue) Get(ctx context.Context) (*Item, error) {
	for {
		it, err := q.get(ctx)
		if !errors.Is(err, errWithdrawn) {
			return it, err
		}
	}
}

func (q *Queue) get(ctx context.Context) (*Item, error) {
	if err := q.awaitGiveBacks(ctx); err != nil {
		return nil, q.explain(ctx, err)
	}
	r, err := q.openRequest(ctx)
	if err != nil {
		return nil, err
	}
	if err = r.detach(); err == nil {
		err = r.Send(ctx, wordGet)
	}
	if err != nil {
		r.close()
		return nil, q.explain(ctx, err)
	}
	it, err := q.receive(ctx, r)
	if err != nil {
		return nil, q.explain(ctx, err)
	}
	return it, nil
}

func (q *Queue) receive(ctx context.Context, r *request) (*Item, error) {
	d, err := r.Recv(ctx)
	switch {
	case err == nil:
		return q.newItem(ctx, r, d)
	case context.Cause(ctx) != nil:
		q.giveBack(r) // an item may have been sent meanwhile
		return nil, err
	}
	r.close()
	if errors.Is(err, io.EOF) {
		err = ErrClosed
	}
	return nil, err
}

// giveBack tells the owner that a request wants no item any more.
func (q *Queue) giveBack(r *request) {
	_ = r.Send(q.ctx, wordBack, bus.Last()) // the request may have ended
	back := make(chan struct{})
	before := q.lastGiveBack.Swap(&back)
	q.finishAsync(r, func() {
		if before != nil {
			<-*before
		}
		close(back)
	})
}

// awaitGiveBacks waits until the items that this process gave back are in the queue again, so that the
// next Get finds them first.
func (q *Queue) awaitGiveBacks(ctx context.Context) error {
	if last := q.lastGiveBack.Load(); last != nil {
		select {
		case <-*last:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// finishAsync waits on a goroutine until the owner has ended a request, then calls then.
func (q *Queue) finishAsync(r *request, then func()) {
	q.unfinishedCloses.add(1)
	go func() {
		defer q.unfinishedCloses.add(-1)
		r.finish(q.ctx)
		then()
	}()
}

// request is a request of a queue. It ends with the queue and, until detach, with the context of the
// call that opened it.
type request struct {
	*bus.Request
	call   context.Context
	unbind func() bool
	cancel context.CancelCauseFunc
}

func (q *Queue) openRequest(ctx context.Context) (*request, error) {
	own, cancel := context.WithCancelCause(q.ctx)
	r := &request{call: ctx, unbind: context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) }), cancel: cancel}
	var err error
	if r.Request, err = q.requests.Stream(own); err != nil {
		r.unbind()
		cancel(nil)
		return nil, q.explain(ctx, err)
	}
	return r, nil
}

// detach lets the request outlive its call.
func (r *request) detach() error {
	if r.unbind() {
		return nil
	}
	return context.Cause(r.call)
}

func (r *request) close() {
	r.unbind()
	r.Close()
	r.cancel(nil)
}

// finish drops the request's results until it has ended, or ctx ends.
func (r *request) finish(ctx context.Context) {
	defer r.close()
	for {
		d, err := r.Recv(ctx)
		if err != nil {
			return
		}
		_ = d.Finish(nil) // just received
	}
}

// explain turns an error into one of the package's errors.
func (q *Queue) explain(ctx context.Context, err error) error {
	var full *FullError
	switch {
	case errors.As(err, &full), errors.Is(err, ErrClosed), errors.Is(err, ErrBusy), errors.Is(err, ErrItem), errors.Is(err, errWithdrawn):
		return err
	case q.ctx.Err() != nil, errors.Is(err, bus.ErrClosed), errors.Is(err, bus.ErrHostGone):
		return ErrClosed
	case context.Cause(ctx) != nil:
		return fmt.Errorf("tensorqueue: %w", context.Cause(ctx))
	}
	return fmt.Errorf("tensorqueue: %w", err)
}

// Size returns the number of items that are not taken, of all processes.
func (q *Queue) Size(ctx context.Context) (int, error) {
	f, err := q.figures(ctx)
	return f.Size, err
}

// Empty reports whether Size is 0.
func (q *Queue) Empty(ctx context.Context) (bool, error) {
	n, err := q.Size(ctx)
	return n == 0, err
}

func (q *Queue) figures(ctx context.Context) (figures, error) {
	switch {
	case q.closed.Load():
		return figures{}, ErrClosed
	case q.hub != nil:
		return q.hub.figures(), nil
	}
	b, err := q.node.Call(ctx, methodSize, nil)
	if err != nil {
		return figures{}, q.explain(ctx, err)
	}
	return parseFigures(b)
}

// Drain waits until all items of this process are done, that is taken and closed. Further Puts are
// still accepted.
func (q *Queue) Drain(ctx context.Context) error {
	if err := q.unfinishedPuts.wait(ctx); err != nil {
		return fmt.Errorf("tensorqueue: drain: items of this process are not done: %w", err)
	}
	return nil
}

// Close leaves the queue; the owner's Close closes it for all processes. Puts and Gets that wait in
// this process, or in all, end with ErrClosed. Items of this process that are not taken are dropped;
// the owner drops all that are not taken. Close waits until the items that were taken here are closed.
// If ctx ends first, Close returns an error and may be called again.
func (q *Queue) Close(ctx context.Context) error {
	q.closed.Store(true)
	if q.hub != nil {
		q.hub.close()
	}
	err := q.unfinishedCloses.wait(ctx) // else the owner would put them back
	q.cancel(ErrClosed)
	if err != nil {
		return fmt.Errorf("tensorqueue: close: the owner has not acknowledged all closed items: %w", err)
	}
	if q.node != nil {
		err = q.node.Close(ctx)
	} else {
		err = errors.Join(q.server.Close(ctx), q.bus.Close(ctx))
	}
	if err == nil {
		err = q.unfinishedPuts.wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("tensorqueue: close: %w", err)
	}
	return nil
}
