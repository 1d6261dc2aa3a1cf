package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// GPUOptions describe the lane that carries tensors in GPU memory. If the machine
// offers less than is configured, tensors travel through host memory, as the figures
// and the log show.
type GPUOptions struct {
	// Lane describes GPUs and pools. Its Directory and Logger are the bus's.
	Lane lane.Options
	// WhenFull is the policy for tensors for which the pool has no space.
	WhenFull WhenFull
	// FullTimeout is how long an emission waits for space before that; default 20 ms.
	// With WaitForSpace it waits until the request is over.
	FullTimeout time.Duration
}

func (o GPUOptions) withDefaults() GPUOptions {
	if o.FullTimeout == 0 {
		o.FullTimeout = spillAfter
	}
	return o
}

// OpenLane opens a lane. Without options it has no GPU.
func OpenLane(ctx context.Context, gpu *GPUOptions, dir lane.Directory, log *slog.Logger) (*lane.Lane, error) {
	var opts lane.Options
	if gpu != nil {
		opts = gpu.Lane
	}
	opts.Directory, opts.Logger = dir, log
	l, err := lane.Open(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("%w: GPU: %w", ErrConfig, err)
	}
	return l, nil
}

// openSender gives the bus a sender of the lane of, or of its own lane.
func (b *Bus) openSender(ctx context.Context, of *lane.Lane) (err error) {
	if b.opts.GPU != nil {
		b.gpu = b.opts.GPU.withDefaults()
	}
	b.leastBytes = max(b.opts.InlineBytes, b.mostInline(b.graph.edges)) + 1
	if b.lane = of; of == nil {
		b.ownLane = true
		if b.lane, err = OpenLane(ctx, b.opts.GPU, b.Directory(), b.opts.Logger); err != nil {
			return err
		}
	}
	b.sender = b.lane.Sender(b.store.Arena(), func() { b.writer.Retry() })
	b.store.OnLarge(b.sender.Mapped)
	return nil
}

// closeSender closes the sender, and the bus's own lane, when no payload is held any more.
func (b *Bus) closeSender(ctx context.Context) error {
	var errs []error
	for _, dev := range b.sender.Devices() {
		if left := b.store.FreeUnusedOn(dev); left > 0 {
			errs = append(errs, fmt.Errorf("%w: %d payloads on a GPU were not given back", ErrNotClean, left))
		}
	}
	errs = append(errs, b.sender.Check(), b.sender.Close(ctx))
	if b.ownLane {
		errs = append(errs, b.lane.Close(ctx))
	}
	return errors.Join(errs...)
}

// WhenFull is the policy for tensors for which a GPU pool has no space.
type WhenFull uint8

const (
	// SpillToHost sends them through host memory.
	SpillToHost WhenFull = iota
	// WaitForSpace makes the stage wait, as for space in the store.
	WaitForSpace
	// FailWhenFull fails the emission with lane.ErrPoolFull.
	FailWhenFull
)

// TensorOptions describe tensors that are sent. The zero value is for complete
// tensors in memory that stays allocated.
type TensorOptions struct {
	// Stream computes the tensors: they are complete when the operations submitted
	// to it so far are done. Nil: they are complete.
	Stream cudaipc.Stream
	// Release is called once when the memory of tensors on a GPU is no longer needed,
	// also after an error; on an edge that shares the buffers themselves (cuda_ipc),
	// after the last reader is done. It may free them.
	Release func()
}

// EmitTensors sends a value with tensors in it, at any depth, as a bundle: those on
// a GPU are [*lane.Tensor], those in host memory [codec.Tensor]. [Edge.Tensors] is
// the transport of the former. If the edges have different transports, the value is
// stored once for each edge.
//
// It returns when the value is sent: copies between GPUs may still run, and
// receivers wait for them. The errors are those of Emit, of package lane and of
// package cudaipc.
func (e Emitter) EmitTensors(v any, t TensorOptions, opts ...EmitOption) error {
	em := Emission{}.with(opts)
	edges, err := e.out.chosen(em)
	if err == nil && len(edges) == 0 {
		err = fmt.Errorf("%w: stage %q has none", ErrNoEdge, e.out.name())
	}
	if err != nil {
		t.release()
		return err
	}
	if sameTransport(edges) {
		return e.emitTensors(v, t, em, edges[0])
	}
	left := atomic.Int32{}
	left.Store(int32(len(edges)))
	release := t.Release
	t.Release = func() {
		if left.Add(-1) == 0 && release != nil {
			release()
		}
	}
	for i, ed := range edges {
		em.Only = e.out.indexOf(ed) + 1
		if err := e.emitTensors(v, t, em, ed); err != nil {
			for range edges[i+1:] {
				t.Release()
			}
			return err
		}
	}
	return nil
}

func (t TensorOptions) release() {
	if t.Release != nil {
		t.Release()
	}
}

// sameTransport reports whether tensors have the same transport on all edges.
func sameTransport(edges []*edge) bool {
	for _, ed := range edges[1:] {
		if ed.spec.Tensors != edges[0].spec.Tensors || ed.spec.TensorMinBytes != edges[0].spec.TensorMinBytes {
			return false
		}
	}
	return true
}

// emitTensors sends a value along edges with the tensor transport of ed.
func (e Emitter) emitTensors(v any, t TensorOptions, em Emission, ed *edge) error {
	ctx, done := e.context()
	defer done()
	err := e.sendTensors(ctx, v, t, em, ed)
	switch {
	case err == nil || e.out.discardsWhenOver():
		return nil
	case ctx.Err() == nil || !errors.Is(err, ctx.Err()) && !errors.Is(err, context.Cause(ctx)):
		return err
	case e.out.req.over():
		return e.out.req.cause()
	}
	return context.Cause(ctx)
}

func (e Emitter) sendTensors(ctx context.Context, v any, t TensorOptions, em Emission, ed *edge) error {
	b := e.out.req.bus
	o, err := b.sender.Plan(ctx, v, laneMode(ed.spec.Tensors), ed.spec.TensorMinBytes, b.leastBytes, t.Release)
	if err != nil {
		t.release()
		return fmt.Errorf("%w: %w", ErrPayload, err)
	}
	buf, err := e.reserveOn(ctx, o, em)
	if err != nil || buf.void {
		o.Cancel()
		return err
	}
	if err := buf.fill(func(dst []byte) error { return o.Fill(ctx, dst, t.Stream) }); err != nil {
		return err
	}
	return buf.Send(o.Size())
}

// context is the request's context, and ends also when the emitter is canceled.
func (e Emitter) context() (ctx context.Context, done func()) {
	ctx = e.out.req.context()
	if e.cancel == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	over := make(chan struct{})
	go func() {
		select {
		case <-e.cancel:
			cancel(ErrCanceled)
		case <-over:
			cancel(nil)
		}
	}()
	return ctx, func() { close(over) }
}

// reserveOn reserves the space for a value with tensors, in the store and on the device.
func (e Emitter) reserveOn(ctx context.Context, o *lane.Outgoing, em Emission) (*Buffer, error) {
	if dev, _ := o.On(); dev == nil {
		b, err := e.reserve(o.Size(), codec.IDBundle, em)
		return &b, err
	}
	b := &Buffer{e: e, em: em, codec: codec.IDBundle, size: o.Size(), price: e.out.req.bus.price(o.Size())}
	if err := b.admit(); err != nil || b.void {
		return b, err
	}
	err := b.reserveOn(ctx, o)
	if err == nil {
		return b, nil
	}
	b.giveCredit()
	switch {
	case errors.Is(err, lane.ErrPoolFull) && e.out.req.bus.gpu.WhenFull == SpillToHost:
		err = o.Spill()
	case errors.Is(err, lane.ErrFull), errors.Is(err, lane.ErrUnavailable):
		err = o.FallBack(err)
	}
	if err != nil {
		return b, err
	}
	return e.reserveOn(ctx, o, em)
}

// reserveOn takes space in the store, with a piece of device memory that other
// processes can find. It does not spill to the heap: the piece belongs to an object
// of the store.
func (b *Buffer) reserveOn(ctx context.Context, o *lane.Outgoing) (err error) {
	if err := b.holdRequest(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.unholdRequest()
		}
	}()
	piece, err := b.awaitSpaceOn(ctx, o)
	if err != nil {
		return err
	}
	o.Reserved(piece)
	if err = o.Publish(ctx); err != nil {
		b.reservation.Abort()
	}
	return err
}

// awaitSpaceOn waits for space in the store and on the device.
func (b *Buffer) awaitSpaceOn(ctx context.Context, o *lane.Outgoing) (piece uint32, err error) {
	dev, deviceBytes := o.On()
	gpu := &b.e.out.req.bus.gpu
	ran := b.e.handlerLock.pause()
	defer b.e.handlerLock.lock(b.e.out.req.id, ran)
	defer b.e.out.beginSpaceWait(dev)()
	var late chan struct{}
	if gpu.WhenFull != WaitForSpace {
		late = make(chan struct{})
		timer := time.AfterFunc(gpu.FullTimeout, func() { close(late) })
		defer timer.Stop()
	}
	b.reservation, piece, err = b.e.out.producer.ReserveOn(ctx.Done(), late, dev, deviceBytes, b.size, b.codec)
	switch {
	case err == nil:
		return piece, nil
	case errors.Is(err, actors.ErrCanceled) && ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case errors.Is(err, actors.ErrCanceled):
		return 0, fmt.Errorf("%w: %d bytes, for %v", lane.ErrPoolFull, deviceBytes, gpu.FullTimeout)
	}
	return 0, fmt.Errorf("reserve %d bytes, and %d on a GPU: %w", b.size, deviceBytes, err)
}

// payloadReleased is called after a payload was released. It trims large objects, and
// returns shared GPU buffers without readers to their owners. Other memory is reclaimed
// when its space is needed.
func (b *Bus) payloadReleased(h messages.Handle) {
	if shmstore.IsLarge(h) { // it is much memory, and the next reservation may come late
		b.writer.Post(func(s *shmstore.Store) { s.TrimLarge() })
	}
	if codec.ID(h.Codec) != codec.IDBundle {
		return
	}
	exports, messages := b.sender.Lent()
	if messages > 0 && b.sweepDue.CompareAndSwap(false, true) {
		b.writer.Post(func(s *shmstore.Store) {
			b.sweepDue.Store(false)
			s.FreeUnusedOn(exports)
		})
	}
}

// checkMovable refuses to copy a payload with tensors on a GPU out of its object: the
// tensors belong to the object and would be freed before the copy.
func checkMovable(id codec.ID, payload []byte) error {
	if id != codec.IDBundle {
		return nil
	}
	b, err := bundle.Open(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrPayload, err)
	}
	if len(b.Places) > 0 {
		return fmt.Errorf("%w: its tensors lie in the memory of a GPU, which stays no longer than the payload here: open it with Tensors and send them with EmitTensors", ErrPayload)
	}
	return nil
}

// Tensors opens a payload that is a bundle (see [Emitter.EmitTensors]), without
// copying its tensors. Finishing the delivery closes the message; the payload is
// released when the streams that read it are done: the return of a handler waits for
// that, [Kept.Finish] does not. When ctx ends during the lookup of memory of another
// process, the error is the context's, or that of the request's end.
func (d *Delivery) Tensors(ctx context.Context) (*lane.Message, error) {
	if d.message != nil {
		return d.message, nil
	}
	if id := d.PayloadCodec(); id != codec.IDBundle {
		return nil, fmt.Errorf("%w: it is encoded with codec %d, not as a bundle", ErrPayload, id)
	}
	l := d.flow.req.bus.lane
	if d.foreign != nil && d.foreign.Segment() != nil {
		d.foreign.Segment().Register(l.Mapped)
	}
	m, err := l.Open(ctx, d.Bytes())
	if err != nil && ctx.Err() != nil && d.flow.req.endedEarly() {
		err = d.flow.req.cause()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPayload, err)
	}
	d.message = m
	return m, nil
}

// whenUnread calls f when no stream reads the payload any more.
func (d *Delivery) whenUnread(f func()) {
	m := d.message
	if m == nil {
		f()
		return
	}
	d.message = nil
	_ = m.Close() // a stream that was closed too early reads no more
	m.OnSettled(f)
}

// awaitUnread waits until no stream reads the payload any more.
func (d *Delivery) awaitUnread() {
	if d.message == nil {
		return
	}
	unread := make(chan struct{})
	d.whenUnread(func() { close(unread) })
	<-unread
}

// laneMode is the mode of the lane for an edge's tensor transport.
func laneMode(t TensorTransport) lane.Mode {
	return [...]lane.Mode{TensorsDefault: lane.Default, TensorsIPC: lane.IPC, TensorsPool: lane.Pool}[t]
}
