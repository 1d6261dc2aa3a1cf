package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	tensors "github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/internal/speech"
)

// transcode sends a source through the pipeline and writes the output.
func transcode(ctx context.Context, o options, src *source, out *sink, p *progress) (_ *figures, err error) {
	s, err := o.open(ctx)
	if err != nil {
		return nil, named(src.name, err)
	}
	defer func() { err = errors.Join(err, s.Close(context.WithoutCancel(ctx))) }()
	r, err := s.Stream(ctx)
	if err != nil {
		return nil, named(src.name, err)
	}
	began := time.Now()
	stop := feed(ctx, r, src, o.step)
	defer stop()
	f := &figures{Rate: src.Format().Rate, Channels: src.Format().Channels}
	if err := f.receive(ctx, r, src, out, p); err != nil {
		return nil, err
	}
	f.Seconds = time.Since(began).Seconds()
	stats, err := s.stats(ctx)
	if err != nil {
		return nil, named(src.name, err)
	}
	f.take(stats)
	return f, nil
}

// feed sends the source to the request, piece by piece, until the source ends or is
// stopped. An error ends the request.
func feed(ctx context.Context, r *bus.Request, src *source, quality float64) (stop func()) {
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for last := false; !last; {
			var err error
			if last, err = feedPiece(ctx, r, src, quality); err != nil {
				r.Abort(err)
				return
			}
		}
	}()
	return func() {
		src.close() // ends a read that waits for input
		r.Close()
		<-fed
	}
}

// feedPiece sends as many samples as make a chunk: a tensor of int16, read in
// place. The last piece has the remaining samples, which may be none; it is always
// sent, since it has the format and may be the first.
func feedPiece(ctx context.Context, r *bus.Request, src *source, quality float64) (last bool, err error) {
	format := src.Format()
	length := codec.ChunkFrames * mdct.HopFor(format.Rate)
	size, err := tensors.TensorSize(tensors.DTypeInt16, length, format.Channels)
	if err != nil {
		return false, err
	}
	buf, err := r.Input(ctx).Reserve(size, tensors.IDTensor,
		bus.Attr(speech.AttrRate, strconv.Itoa(format.Rate)),
		bus.Attr(speech.AttrQuality, strconv.FormatFloat(quality, 'g', -1, 64)))
	if err != nil {
		return false, err
	}
	defer buf.Abort()
	pcm, _, err := speech.LayOut[int16](buf.Bytes(), length, format.Channels)
	if err != nil {
		return false, err
	}
	n, more := src.fill(pcm)
	if more {
		return false, buf.Send(size)
	}
	if _, size, err = speech.LayOut[int16](buf.Bytes(), n/format.Channels, format.Channels); err != nil {
		return false, err
	}
	return true, buf.Send(size, bus.Last())
}

// receive writes the samples as they arrive, and measures them.
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
