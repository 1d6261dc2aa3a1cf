package main

import (
	"context"
	"errors"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	tensors "github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/speech/internal/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// transcode sends a source through the pipeline and writes what comes out.
func transcode(ctx context.Context, o options, src *source, out *sink, p *progress) (_ *figures, err error) {
	format := src.Format()
	stages := pipeline(src, format, o.step)
	opts := bus.Options{Name: "speech", Store: shmstore.Options{ArenaBytes: 32 << 20}}
	if o.tweak != nil {
		o.tweak(&stages, &opts)
	}
	b, err := bus.Open(ctx, stages, opts)
	if err != nil {
		return nil, named(src.name, err)
	}
	defer func() {
		src.close() // or a thinker that waits for input would hold up the bus
		err = errors.Join(err, b.Close(context.WithoutCancel(ctx)))
	}()
	r, err := b.Submit(ctx, "speak")
	if err != nil {
		return nil, named(src.name, err)
	}
	f := &figures{Rate: format.Rate, Channels: format.Channels}
	began := time.Now()
	if err := f.receive(ctx, r, src, out, p); err != nil {
		return nil, err
	}
	f.Seconds = time.Since(began).Seconds()
	f.take(b.Stats())
	return f, nil
}

// receive writes the samples as they come, and measures them.
func (f *figures) receive(ctx context.Context, r *bus.Request, src *source, out *sink, p *progress) error {
	defer p.done()
	var noise codec.SNRMeter
	for d, err := range r.Results(ctx) {
		if err != nil {
			return named(src.name, err)
		}
		pcm, err := samples(d)
		if err != nil {
			return named(src.name, err)
		}
		if err := out.write(pcm); err != nil {
			return err
		}
		noise.Add(src.take(len(pcm)), pcm)
		f.Samples += len(pcm)
		p.show(f.Samples)
	}
	f.setSNR(noise.DB())
	return src.Err()
}

func samples(d *bus.Delivery) ([]int16, error) {
	x, err := d.Tensor()
	if err != nil {
		return nil, err
	}
	return tensors.View[int16](x)
}
