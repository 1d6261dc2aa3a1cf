package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	tensors "github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/speech/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/speech/internal/wav"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// transcode sends one WAV through the pipeline and writes what comes out.
func transcode(ctx context.Context, o options, in io.Reader, out, progress io.Writer) (_ *figures, err error) {
	reader, err := wav.NewReader(in)
	if err != nil {
		return nil, err
	}
	format := reader.Format()
	src := &recorder{Source: reader}
	p := pipeline(src, format, o.step)
	if o.edges != nil {
		o.edges(p.Edges)
	}
	b, err := bus.Open(ctx, p, bus.Options{Name: "speech", Store: shmstore.Options{ArenaBytes: 32 << 20}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx))) }()

	r, err := b.Submit(ctx, "speak")
	if err != nil {
		return nil, err
	}
	f := &figures{Rate: format.Rate, Channels: format.Channels}
	began := time.Now()
	if err := f.receive(ctx, r, src, out, newProgress(progress, format)); err != nil {
		return nil, err
	}
	f.Seconds = time.Since(began).Seconds()
	f.take(b.Stats())
	return f, nil
}

// receive writes the samples as they come, and measures them.
func (f *figures) receive(ctx context.Context, r *bus.Request, src *recorder, out io.Writer, p *progress) error {
	w, err := wav.NewWriter(out, wav.Format{Rate: f.Rate, Channels: f.Channels})
	if err != nil {
		return err
	}
	var noise codec.SNRMeter
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		pcm, err := samples(d)
		if err != nil {
			return err
		}
		if err := w.WriteSamples(pcm); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		noise.Add(src.take(len(pcm)), pcm)
		f.Samples += len(pcm)
		p.show(f.Samples)
	}
	p.done()
	f.setSNR(noise.DB())
	return w.Close()
}

func samples(d *bus.Delivery) ([]int16, error) {
	x, err := d.Tensor()
	if err != nil {
		return nil, err
	}
	return tensors.View[int16](x)
}

// recorder remembers what was read until it is compared with the output.
type recorder struct {
	codec.Source
	mu  sync.Mutex
	pcm []int16
}

// ReadSamples implements codec.Source.
func (r *recorder) ReadSamples(dst []int16) (int, error) {
	n, err := r.Source.ReadSamples(dst)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pcm = append(r.pcm, dst[:n]...)
	return n, err
}

func (r *recorder) take(n int) []int16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	head := r.pcm[:n:n]
	r.pcm = r.pcm[n:]
	return head
}
