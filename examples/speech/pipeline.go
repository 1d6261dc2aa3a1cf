package main

import (
	"errors"
	"io"
	"strconv"

	"github.com/omnibus-runtime/omnibus/bus"
	tensors "github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/speech/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/speech/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/speech/internal/wav"
)

// pipeline is the codec as three stages. src is where the thinker reads.
func pipeline(src codec.Source, format wav.Format, ratio float64) bus.Pipeline {
	return bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "thinker", MaxInflight: 1, Handle: think(src, format)},
			{Name: "talker", MaxInflight: 1, Handle: talk(ratio)},
			{Name: "vocoder", MaxInflight: 1, Handle: vocode},
		},
		Edges: []bus.Edge{
			{From: "thinker", To: "talker", Window: 8},
			{From: "talker", To: "vocoder", Window: 8},
		},
	}
}

// Attributes of a tensor of coefficients that its shape does not tell.
const (
	attrRate    = "rate"
	attrSamples = "samples"
)

// think reads the source to its end, and sends its coefficients chunk by
// chunk: tensors of [frame][channel][coefficient], computed in place.
func think(src codec.Source, format wav.Format) bus.Handler {
	return func(t *bus.Task, _ *bus.Delivery) error {
		a, err := codec.NewAnalysis(src, format.Rate, format.Channels, mdct.HopFor(format.Rate))
		for err == nil {
			err = thinkOne(t, a)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
}

func thinkOne(t *bus.Task, a *codec.Analysis) error {
	full := a.FullShape()
	size, err := tensors.TensorSize(tensors.DTypeFloat32, full.Frames, full.Channels, full.Hop)
	if err != nil {
		return err
	}
	buf, err := t.Reserve(size, tensors.IDTensor)
	if err != nil {
		return err
	}
	defer buf.Abort()
	coeffs, _, err := coefficients(buf.Bytes(), full)
	if err != nil {
		return err
	}
	shape, err := a.Next(coeffs)
	if err != nil {
		return err
	}
	// The last chunk is shorter. Its data begins at the same place.
	_, size, err = coefficients(buf.Bytes(), shape)
	if err != nil {
		return err
	}
	return buf.Send(size,
		bus.Attr(attrRate, strconv.Itoa(shape.Rate)),
		bus.Attr(attrSamples, strconv.Itoa(shape.Samples)))
}

// coefficients lays out a tensor for a chunk at the start of buf.
func coefficients(buf []byte, s codec.Shape) (coeffs []float32, size int, err error) {
	size, err = tensors.TensorSize(tensors.DTypeFloat32, s.Frames, s.Channels, s.Hop)
	if err != nil {
		return nil, 0, err
	}
	x, err := tensors.NewTensorIn(buf[:size], tensors.DTypeFloat32, s.Frames, s.Channels, s.Hop)
	if err != nil {
		return nil, 0, err
	}
	coeffs, err = tensors.View[float32](x)
	return coeffs, size, err
}

// talk codes one chunk of coefficients, straight into the store.
func talk(ratio float64) bus.Handler {
	return func(t *bus.Task, d *bus.Delivery) error {
		coeffs, shape, err := chunkOf(d)
		if err != nil {
			return err
		}
		buf, err := t.Reserve(codec.MaxEncodedSize(shape), tensors.IDRaw)
		if err != nil {
			return err
		}
		defer buf.Abort()
		coded, err := codec.EncodeChunk(buf.Bytes()[:0], coeffs, shape, codec.StepFor(coeffs, ratio))
		if err != nil {
			return err
		}
		return buf.Send(len(coded))
	}
}

// chunkOf views a delivery's tensor as the chunk it is.
func chunkOf(d *bus.Delivery) ([]float32, codec.Shape, error) {
	var s codec.Shape
	x, err := d.Tensor()
	if err != nil {
		return nil, s, err
	}
	coeffs, err := tensors.View[float32](x)
	if err != nil {
		return nil, s, err
	}
	rate, err := strconv.Atoi(d.Attrs[attrRate])
	if err != nil {
		return nil, s, err
	}
	samples, err := strconv.Atoi(d.Attrs[attrSamples])
	if err != nil {
		return nil, s, err
	}
	s = codec.Shape{Rate: rate, Frames: x.Shape[0], Channels: x.Shape[1], Hop: x.Shape[2], Samples: samples}
	return coeffs, s, nil
}

// voice is what the vocoder keeps from one chunk of a request to the next.
type voice struct {
	synthesis *codec.Synthesis
	coeffs    []float32
}

// vocode turns one coded chunk into samples: a tensor of int16, computed in
// place.
func vocode(t *bus.Task, d *bus.Delivery) error {
	shape, err := codec.ChunkShape(d.Bytes())
	if err != nil {
		return err
	}
	v, ok := t.State.(*voice)
	if !ok {
		s, err := codec.NewSynthesis(shape.Channels, shape.Hop)
		if err != nil {
			return err
		}
		v = &voice{synthesis: s}
		t.State = v
	}
	if n := shape.Coefficients(); cap(v.coeffs) < n {
		v.coeffs = make([]float32, n)
	}
	v.coeffs = v.coeffs[:shape.Coefficients()]
	if _, err := codec.DecodeChunk(v.coeffs, d.Bytes()); err != nil {
		return err
	}
	return t.EmitTensor(tensors.DTypeInt16, []int{shape.Samples, shape.Channels}, func(data []byte) error {
		pcm, err := tensors.View[int16](tensors.Tensor{DType: tensors.DTypeInt16, Shape: []int{shape.Samples, shape.Channels}, Data: data})
		if err != nil {
			return err
		}
		_, err = v.synthesis.Next(pcm, v.coeffs, shape)
		return err
	})
}
