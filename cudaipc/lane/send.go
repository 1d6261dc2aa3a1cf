package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Mode is the way in which tensors on a GPU travel.
type Mode uint8

// The modes.
const (
	// Default copies them through the payload, in host memory.
	Default Mode = iota
	// IPC shares the sender's own buffers, which stay until no reader uses them.
	IPC
	// Pool copies them into a chunk of the lane's pool.
	Pool
)

// String returns the name that configurations use.
func (m Mode) String() string {
	return [...]string{Default: "default", IPC: "cuda_ipc", Pool: "cuda_ipc_pool"}[m]
}

// chunkAlign aligns tensors in a chunk, for copy engines and libraries.
const chunkAlign = 256

// Outgoing is a value that is being sent. The order of calls is Plan, a reservation of
// [Outgoing.Size] and [Outgoing.On], Reserved if On returned a device, then Fill; or Cancel in
// place of Fill. It belongs to one goroutine.
type Outgoing struct {
	lane      *Lane
	sender    *Sender
	dev       *device // device of the tensors on a GPU; nil: there are none
	plan      *bundle.Plan
	mode      Mode
	size      int
	bytes     int64 // size of the chunk
	tensors   []outgoingTensor
	release   func()
	piece     *pool.Chunk // nil until Reserved
	submitted bool        // copies were submitted to a stream
}

// outgoingTensor is a tensor on a GPU.
type outgoingTensor struct {
	from   *Tensor
	number int // index in the plan's tensors
}

// Plan finds the tensors at any depth of a value, [codec.Tensor] and [*Tensor], and chooses how it
// travels. Tensors on a GPU with fewer than minBytes together go through host memory, as they do
// where the mode does not work: Stats counts the reasons.
//
// release, if not nil, is called once when the sender's GPU memory is not needed any more, or after
// Cancel. A payload with places has at least leastBytes. When ctx ends while the sender prepares a
// mode, which it does once, the error is the context's.
func (s *Sender) Plan(ctx context.Context, v any, mode Mode, minBytes int64, leastBytes int, release func()) (*Outgoing, error) {
	p, err := bundle.NewPlan(v)
	if err != nil {
		return nil, err
	}
	p.MinBytes = leastBytes
	o := &Outgoing{lane: s.lane, sender: s, plan: p, release: release}
	var total int64
	for i := range p.Tensors {
		t, ok := p.Tensors[i].Source.(*Tensor)
		if !ok {
			if _, other := p.Tensors[i].Source.(bundle.Source); other && p.Tensors[i].Data == nil {
				return nil, fmt.Errorf("%w: a tensor of type %T, whose bytes cannot be copied", cudaipc.ErrInvalid, p.Tensors[i].Source)
			}
			continue
		}
		if err := o.add(i, t); err != nil {
			return nil, err
		}
		total += t.Bytes()
	}
	if o.mode, err = s.choose(ctx, o, mode, minBytes, total); err != nil {
		return nil, err
	}
	err = o.layout()
	return o, err
}

// add adds a tensor on a GPU.
func (o *Outgoing) add(number int, t *Tensor) error {
	dev, err := o.lane.device(t.Device)
	if err != nil {
		return fmt.Errorf("send %v: %w", t, err)
	}
	if !t.DType.Valid() {
		return fmt.Errorf("send %v: %w: unknown dtype", t, cudaipc.ErrInvalid)
	}
	if t.Strides != nil && len(t.Strides) != len(t.Shape) {
		return fmt.Errorf("send %v: %w: %d strides", t, cudaipc.ErrInvalid, len(t.Strides))
	}
	if _, ok := extent(int64(t.DType.Size()), t.Shape, t.Strides); !ok {
		return fmt.Errorf("send %v: %w: strides %v reach beyond any memory", t, cudaipc.ErrInvalid, t.Strides)
	}
	if t.Ptr == 0 && t.Bytes() > 0 { // an access to address 0 ends the GPU
		return fmt.Errorf("send %v: %w: its Ptr is 0: say where its elements are", t, cudaipc.ErrInvalid)
	}
	if o.dev == nil {
		o.dev = dev // tensors of other devices are copied to it
	}
	o.tensors = append(o.tensors, outgoingTensor{from: t, number: number})
	return nil
}

// layout sets the position of each tensor, and the sizes.
func (o *Outgoing) layout() (err error) {
	o.plan.Places, o.bytes = nil, 0
	for _, t := range o.tensors {
		p := &o.plan.Tensors[t.number]
		p.Place, p.Offset, p.Strides = 0, 0, nil
		switch n := t.from.Bytes(); {
		case n == 0: // an empty tensor is in the payload
		case o.mode == Pool:
			o.plan.Places = append(o.plan.Places[:0], bundle.Place{})
			p.Place, p.Offset = 1, o.bytes
			o.bytes += (n + chunkAlign - 1) &^ (chunkAlign - 1)
		case o.mode == IPC:
			o.plan.Places = append(o.plan.Places, bundle.Place{})
			p.Place, p.Strides = len(o.plan.Places), t.from.Strides
		}
	}
	o.size, err = o.plan.Size()
	return err
}

// Mode returns the chosen mode.
func (o *Outgoing) Mode() Mode { return o.mode }

// Size returns the size of the payload in bytes.
func (o *Outgoing) Size() int { return o.size }

// On returns the device of which the payload's object must hold a piece, and the piece's size in
// bytes; nil for none.
func (o *Outgoing) On() (dev shmstore.Device, sizeBytes int64) {
	switch {
	case len(o.plan.Places) == 0:
		return nil, 0
	case o.mode == Pool:
		return o.sender.pool, o.bytes
	default:
		return o.sender.exports, 0
	}
}

// Spill switches to host memory. It is for a pool without space, before the reservation.
func (o *Outgoing) Spill() error {
	o.lane.count(func(s *Stats) { s.Spilt++ })
	o.mode = Default
	return o.layout()
}

// Reserved sets the reserved piece of On's device.
func (o *Outgoing) Reserved(piece uint32) {
	if o.mode == Pool {
		c := o.sender.pool.Chunk(piece)
		o.piece = &c
	} else {
		o.piece = &pool.Chunk{Piece: o.sender.exports.Piece(piece)}
	}
}

// Publish publishes the arena of the reserved piece, which may ask the directory. If the directory
// is full or unavailable, it returns that error, and the value can still fall back. When ctx ends
// first the error is the context's. After either, the caller aborts the reservation. Other errors
// are returned by Fill.
func (o *Outgoing) Publish(ctx context.Context) error {
	if o.mode != Pool {
		return nil
	}
	err := o.sender.publishArena(ctx, o.piece.Arena)
	if errors.Is(err, ErrFull) || errors.Is(err, ErrUnavailable) || hasEnded(ctx, err) {
		o.failPiece()
		return err
	}
	return nil
}

// FallBack switches to host memory after an error of Publish. The caller then makes another
// reservation.
func (o *Outgoing) FallBack(why error) error {
	o.lane.opts.Logger.Warn("tensors travel through host memory", slog.Any("instead", o.mode.String()), slog.Any("why", why))
	o.lane.count(func(s *Stats) { s.Fallbacks++ })
	o.mode = Default
	return o.layout()
}

// Cancel declares that the value will not be filled. The caller then aborts the reservation.
func (o *Outgoing) Cancel() {
	o.failPiece()
	o.releaseSource()
}

// releaseSource calls release, once: the sender's memory is not needed any more.
func (o *Outgoing) releaseSource() {
	if f := o.release; f != nil {
		o.release = nil
		f()
	}
}

// failPiece marks the piece as never complete, so that no reader waits for it.
func (o *Outgoing) failPiece() {
	if o.piece != nil {
		o.piece.Fail()
		o.piece = nil
	}
}

// Fill writes the payload into dst, which has Size bytes, and copies the tensors on a GPU, after
// the operations that were submitted to s before, if s is not nil. Copies into host memory are done
// when Fill returns; others may still run. When ctx ends first, Fill fails, but returns only after
// the last write to dst.
//
// After an error, or a panic of the stream or of release, the caller aborts the reservation;
// release has been called.
func (o *Outgoing) Fill(ctx context.Context, dst []byte, s cudaipc.Stream) error {
	filled := false
	defer func() {
		if !filled {
			o.lane.count(func(s *Stats) { s.Failed++ })
			o.releaseSource()
		}
	}()
	if err := o.fill(ctx, dst, s); err != nil {
		return fmt.Errorf("send tensors as %v: %w", o.mode, err)
	}
	filled = true
	o.lane.sent(o)
	return nil
}

func (o *Outgoing) fill(ctx context.Context, dst []byte, s cudaipc.Stream) (err error) {
	if o.dev == nil {
		err := o.plan.EncodeInto(dst)
		o.releaseSource() // no GPU memory was used, but release is always called
		return err
	}
	if s == nil {
		if s, err = o.dev.takeStream(); err != nil {
			o.failPiece()
			return err
		}
		defer o.dev.giveStream(s)
	}
	filled := false
	defer func() {
		if !filled {
			err = errors.Join(err, o.abortFill(s))
		}
	}()
	switch {
	case len(o.plan.Places) == 0:
		if err = o.plan.EncodeInto(dst); err == nil {
			err = o.fillHost(ctx, dst, s)
		}
	case o.mode == Pool:
		err = o.fillChunk(ctx, dst, s)
	default:
		err = o.fillHandles(dst, s)
	}
	filled = err == nil
	return err
}

// abortFill waits until no copy writes to the payload or the piece, without a deadline: they get
// other owners next. A failed device writes no more, and without submitted copies there is nothing
// to wait for.
func (o *Outgoing) abortFill(s cudaipc.Stream) (err error) {
	if o.submitted && o.dev.Err() == nil {
		err = s.Synchronize(context.Background())
	}
	o.failPiece()
	return err
}

// fillHost copies tensors into the payload, which is dst.
func (o *Outgoing) fillHost(ctx context.Context, dst []byte, s cudaipc.Stream) error {
	var fetches []fetch
	for _, t := range o.tensors {
		data := o.plan.Tensors[t.number].Data
		if len(data) == 0 {
			continue
		}
		ops, err := pack(nil, cudaipc.HostPtr(data), t.from.Ptr, int64(t.from.DType.Size()), t.from.Shape, t.from.strides())
		if err != nil {
			return err
		}
		fetches = append(fetches, fetch{data, ops})
	}
	o.submitted = true
	if err := o.lane.fetch(ctx, o.dev, s, dst, fetches); err != nil {
		return err
	}
	o.releaseSource()
	return nil
}

// fillChunk copies tensors into the piece, and writes its ready word after them.
func (o *Outgoing) fillChunk(ctx context.Context, dst []byte, s cudaipc.Stream) error {
	c := o.piece
	if err := o.sender.publishArena(ctx, c.Arena); err != nil {
		return err
	}
	o.plan.Places[0] = bundle.Place{
		Kind: bundle.PlacePool, Device: o.lane.firstDevice.uuid, Pool: o.sender.pool.ID(), Slot: c.Number, Generation: c.Generation,
		Arena: c.Arena, Offset: c.Offset, Bytes: c.Bytes,
	}
	if err := o.plan.EncodeInto(dst); err != nil {
		return err
	}
	var ops []cudaipc.Op
	var err error
	for _, t := range o.tensors {
		p := &o.plan.Tensors[t.number]
		if p.Place == 0 {
			continue
		}
		if ops, err = pack(ops, c.Ptr+cudaipc.Ptr(p.Offset), t.from.Ptr, int64(t.from.DType.Size()), t.from.Shape, t.from.strides()); err != nil {
			return err
		}
	}
	ops = append(ops, cudaipc.Op{Kind: cudaipc.OpWrite, Word: c.Ready, Value: c.Generation})
	o.submitted = true
	if err := s.Submit(ops...); err != nil {
		return err
	}
	o.whenReady(o.releaseSource)
	return nil
}

// whenReady calls f when the ready word of the piece is written, or the device has failed; then it
// marks the piece as failed for the readers.
func (o *Outgoing) whenReady(f func()) {
	c := o.piece
	o.sender.beginCopy()
	o.dev.watcher.add(o.dev, reached(c.Ready, c.Generation), func() {
		defer o.sender.endCopy()
		c.Fail()
		go f() // freeing memory waits for streams, which may wait for the watcher
	})
}

// fillHandles writes the ready word after the stream's earlier operations on the sender's buffers.
func (o *Outgoing) fillHandles(dst []byte, s cudaipc.Stream) error {
	c := o.piece
	for _, t := range o.tensors {
		p := &o.plan.Tensors[t.number]
		if p.Place == 0 {
			continue
		}
		h, offset, err := o.dev.Export(t.from.Ptr)
		if err != nil {
			return fmt.Errorf("export %v: %w", t.from, err)
		}
		reach, _ := extent(int64(t.from.DType.Size()), t.from.Shape, t.from.Strides)
		o.plan.Places[p.Place-1] = bundle.Place{
			Kind: bundle.PlaceHandle, Device: o.lane.uuidOf(t.from), Pool: o.sender.exports.ID(), Slot: c.Number, Generation: c.Generation,
			Handle: h, Offset: offset, Bytes: reach,
		}
	}
	if err := o.plan.EncodeInto(dst); err != nil {
		return err
	}
	o.sender.exports.Keep(c.Number, lendBuffers(o))
	o.submitted = true
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpWrite, Word: c.Ready, Value: c.Generation}); err != nil {
		return err
	}
	o.whenReady(func() {})
	return nil
}
