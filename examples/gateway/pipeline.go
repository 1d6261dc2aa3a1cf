package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/omnibus-runtime/omnibus/bus"
	tensors "github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
)

// pipeline is the codec of examples/speech, but for where the samples come
// from: here they are the request's inputs, and no stage waits for a client.
//
//	samples -> thinker: coefficients -> talker: coded -> vocoder: samples
func pipeline(replicas, inflight int) bus.Pipeline {
	stage := func(name string, handle bus.Handler) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: handle, Replicas: replicas, MaxInflight: inflight}
	}
	thinker := stage("thinker", think)
	thinker.End = thinkToTheEnd
	return bus.Pipeline{
		Stages: []bus.StageSpec{thinker, stage("talker", talk), stage("vocoder", vocode)},
		Edges:  []bus.Edge{{From: "thinker", To: "talker"}, {From: "talker", To: "vocoder"}},
	}
}

// Attributes of a tensor that its shape does not tell.
const (
	attrRate    = "rate"
	attrSamples = "samples"
	attrQuality = "quality"
)

// thought is what the thinker keeps from one delivery of a request to the next.
type thought struct {
	analysis *codec.Analysis
	pcm      queue
	need     int // values that are sure to make a full chunk
	quality  string
}

// think makes coefficients of the samples that have come, chunk by chunk.
func think(t *bus.Task, d *bus.Delivery) error {
	x, err := d.Tensor()
	if err != nil {
		return err
	}
	pcm, err := tensors.View[int16](x)
	if err != nil {
		return err
	}
	th, ok := t.State.(*thought)
	if !ok {
		if th, err = newThought(d, x.Shape[1]); err != nil {
			return err
		}
		t.State = th
	}
	th.pcm.push(pcm)
	for th.pcm.len() >= th.need {
		if err := th.next(t); err != nil {
			return err
		}
	}
	return nil
}

func newThought(d *bus.Delivery, channels int) (*thought, error) {
	rate, err := strconv.Atoi(d.Attrs[attrRate])
	if err != nil {
		return nil, fmt.Errorf("attribute %s: %w", attrRate, err)
	}
	th := &thought{quality: d.Attrs[attrQuality]}
	th.analysis, err = codec.NewAnalysis(&th.pcm, rate, channels, mdct.HopFor(rate))
	if err != nil {
		return nil, err
	}
	full := th.analysis.FullShape()
	th.need = full.Samples * full.Channels
	return th, nil
}

// thinkToTheEnd makes coefficients of what is left.
func thinkToTheEnd(t *bus.Task) error {
	th, ok := t.State.(*thought)
	if !ok {
		return errors.New("no samples came, and so no format")
	}
	var err error
	for err == nil {
		err = th.next(t)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// next sends the next chunk: a tensor of [frame][channel][coefficient],
// computed in place.
func (th *thought) next(t *bus.Task) error {
	full := th.analysis.FullShape()
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
	shape, err := th.analysis.Next(coeffs)
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
		bus.Attr(attrSamples, strconv.Itoa(shape.Samples)),
		bus.Attr(attrQuality, th.quality))
}

// queue is samples on their way to an Analysis, which takes them as a
// codec.Source. It is empty at the end only: until then there is enough.
type queue struct {
	pcm []int16
	at  int
}

func (q *queue) len() int { return len(q.pcm) - q.at }

func (q *queue) push(pcm []int16) {
	rest := copy(q.pcm, q.pcm[q.at:])
	q.pcm, q.at = append(q.pcm[:rest], pcm...), 0
}

// ReadSamples implements codec.Source.
func (q *queue) ReadSamples(dst []int16) (int, error) {
	if q.len() == 0 {
		return 0, io.EOF
	}
	n := copy(dst, q.pcm[q.at:])
	q.at += n
	return n, nil
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
func talk(t *bus.Task, d *bus.Delivery) error {
	coeffs, shape, err := chunkOf(d)
	if err != nil {
		return err
	}
	quality, err := strconv.ParseFloat(d.Attrs[attrQuality], 64)
	if err != nil {
		return fmt.Errorf("attribute %s: %w", attrQuality, err)
	}
	buf, err := t.Reserve(codec.MaxEncodedSize(shape), tensors.IDRaw)
	if err != nil {
		return err
	}
	defer buf.Abort()
	coded, err := codec.EncodeChunk(buf.Bytes()[:0], coeffs, shape, codec.StepFor(coeffs, quality))
	if err != nil {
		return err
	}
	return buf.Send(len(coded))
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
		return nil, s, fmt.Errorf("attribute %s: %w", attrRate, err)
	}
	samples, err := strconv.Atoi(d.Attrs[attrSamples])
	if err != nil {
		return nil, s, fmt.Errorf("attribute %s: %w", attrSamples, err)
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
