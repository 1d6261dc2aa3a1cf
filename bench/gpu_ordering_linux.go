package bench

import (
	"bytes"
	"context"
	"errors"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// gpuOrdering delays the streams of either end, and counts tensors that are read or
// overwritten too early. It also makes mistakes on purpose, and counts those that
// are not detected, which shows whether the other counts mean anything.
type gpuOrdering struct {
	*gpuPair
	hold   holder
	buffer []byte
	host   cudaipc.HostMemory
	mark   byte
	rounds int
}

// orderingBytes is the size of a tensor, of which exactly two fit into a pool of
// orderingPool bytes.
const (
	orderingBytes = 896 * kib
	orderingPool  = 2 * mib
)

func openGPUOrdering(ctx context.Context, opts Options) (trial, error) {
	holdBytes := int64(16 * mib)
	if opts.Driver == DriverCUDA {
		holdBytes = 1024 * mib
	}
	o := &gpuOrdering{rounds: 5}
	if opts.Quick {
		o.rounds = 1
	}
	var err error
	o.gpuPair, err = openGPUPair(ctx, opts, peerSpec{
		Carrier: byGPU, Pattern: pattern{Size: bundleBytes, Every: 4},
		GPU: &gpuSpec{Waiting: "ladder", Driver: opts.Driver, TensorBytes: orderingBytes, PoolBytes: orderingPool, HoldBytes: holdBytes},
	})
	if err != nil {
		return nil, err
	}
	if o.hold, err = newHolder(ctx, o.gpuEnd); err == nil {
		o.buffer, o.host, err = o.pinned(orderingBytes)
	}
	if err != nil {
		return nil, errors.Join(err, o.close(context.WithoutCancel(ctx)))
	}
	return o, nil
}

func (o *gpuOrdering) round(ctx context.Context, _ bool) ([]sample, error) {
	var early, overwritten, hasty, dropped sample
	for range o.rounds {
		for _, c := range []struct {
			count *sample
			run   func(context.Context, string) (bool, error)
			do    string
			wrong bool // the mistake must be detected
		}{
			{&early, o.readEarly, doCheck, false},
			{&overwritten, o.readReused, doHold, false},
			{&hasty, o.readEarly, doHasty, true},
			{&dropped, o.readReused, doDropped, true},
		} {
			wrong, err := c.run(ctx, c.do)
			if err != nil {
				return nil, o.explained(err)
			}
			if wrong != c.wrong {
				c.count.ours++
			}
		}
	}
	return []sample{early, overwritten, hasty, dropped}, nil
}

// readEarly sends a tensor that a delayed stream has yet to make, and has it read at once.
func (o *gpuOrdering) readEarly(ctx context.Context, do string) (wrong bool, err error) {
	if err := o.hold.occupy(o.stream); err != nil {
		return false, err
	}
	if err := o.send(ctx, do); err != nil {
		return false, err
	}
	a, err := o.awaitAnswer()
	return a.wrong, errors.Join(err, o.stream.Synchronize(ctx))
}

// readReused sends a tensor that is read late, and then others, which share the only other
// chunk of the pool.
func (o *gpuOrdering) readReused(ctx context.Context, do string) (wrong bool, err error) {
	if err := o.send(ctx, do); err != nil {
		return false, err
	}
	mark := o.mark
	if _, err := o.awaitAnswer(); err != nil {
		return false, err
	}
	const others = 4
	for range others {
		if err := o.overwrite(ctx); err != nil {
			return false, err
		}
	}
	v := map[string]any{"do": doVerdict, "mark": int64(mark)}
	if err := o.publish(ctx, v, gpulane.Default, o.readers); err != nil {
		return false, err
	}
	a, err := o.awaitAnswer()
	return a.wrong, err
}

// send fills the tensor on the stream, with a new mark, and sends it.
func (o *gpuOrdering) send(ctx context.Context, do string) error {
	if err := o.fill(); err != nil {
		return err
	}
	return o.publish(ctx, map[string]any{"do": do, "mark": int64(o.mark), "x": o.tensor()}, gpulane.Pool, o.readers)
}

// overwrite fills a chunk without a reader.
func (o *gpuOrdering) overwrite(ctx context.Context) error {
	if err := o.fill(); err != nil {
		return err
	}
	if err := o.publish(ctx, map[string]any{"x": o.tensor()}, gpulane.Pool, 0); err != nil {
		return err
	}
	return o.stream.Synchronize(ctx)
}

func (o *gpuOrdering) fill() error {
	o.mark = o.mark%250 + 1
	copy(o.buffer, bytes.Repeat([]byte{o.mark}, len(o.buffer)))
	return o.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: o.from, Src: o.host.Ptr(0), Bytes: orderingBytes})
}
