package speech

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

// Attributes of a tensor that are not part of its shape.
const (
	AttrRate    = "rate"    // samples a second
	AttrQuality = "quality" // the step, as a fraction of the signal's level
	AttrSamples = "samples" // number of samples that the coefficients complete
)

// Pipeline is the codec as three stages, each with so many replicas and requests in
// flight, and with so many chunks of a request in flight to the next stage. 0 is the
// default of the bus.
func Pipeline(replicas, inflight, window int) bus.Pipeline {
	p := bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "thinker", Handle: think, End: thinkToTheEnd},
			{Name: "talker", Handle: talk, State: bus.StateNone},
			{Name: "vocoder", Handle: vocode},
		},
		Edges: []bus.Edge{
			{From: "thinker", To: "talker", Window: window},
			{From: "talker", To: "vocoder", Window: window},
		},
	}
	for i := range p.Stages {
		p.Stages[i].Replicas, p.Stages[i].MaxInflight = replicas, inflight
	}
	return p
}

// thought is the state of the thinker between two inputs of a request.
type thought struct {
	analysis *codec.Analysis
	pcm      queue
	need     int // values that are enough for a full chunk
	quality  string
}

// think makes coefficients of the samples that have arrived, chunk by chunk.
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
		if len(x.Shape) != 2 {
			return fmt.Errorf("samples of shape %v: it must be [sample][channel]", x.Shape)
		}
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
	rate, err := strconv.Atoi(d.Attrs[AttrRate])
	if err != nil {
		return nil, fmt.Errorf("attribute %s: %w", AttrRate, err)
	}
	th := &thought{quality: d.Attrs[AttrQuality]}
	if th.analysis, err = codec.NewAnalysis(&th.pcm, rate, channels, mdct.HopFor(rate)); err != nil {
		return nil, err
	}
	full := th.analysis.FullShape()
	th.need = full.Samples * full.Channels
	return th, nil
}

// thinkToTheEnd makes coefficients of the remaining samples.
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
	coeffs, _, err := LayOut[float32](buf.Bytes(), full.Frames, full.Channels, full.Hop)
	if err != nil {
		return err
	}
	shape, err := th.analysis.Next(coeffs)
	if err != nil {
		return err
	}
	// The last chunk is shorter. Its data begins at the same place.
	_, size, err = LayOut[float32](buf.Bytes(), shape.Frames, shape.Channels, shape.Hop)
	if err != nil {
		return err
	}
	return buf.Send(size,
		bus.Attr(AttrRate, strconv.Itoa(shape.Rate)),
		bus.Attr(AttrSamples, strconv.Itoa(shape.Samples)),
		bus.Attr(AttrQuality, th.quality))
}

// queue holds samples for an Analysis, which reads them as a codec.Source. It runs
// empty only at the end of the stream.
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

// LayOut lays out a tensor at the start of buf. It returns the tensor's elements,
// to be filled in, and its size in bytes. The errors are package codec's.
func LayOut[T tensors.Element](buf []byte, shape ...int) (data []T, size int, err error) {
	dtype := tensors.DTypeOf[T]()
	if size, err = tensors.TensorSize(dtype, shape...); err != nil {
		return nil, 0, err
	}
	x, err := tensors.NewTensorIn(buf[:size], dtype, shape...)
	if err != nil {
		return nil, 0, err
	}
	data, err = tensors.View[T](x)
	return data, size, err
}

// talk codes one chunk of coefficients, straight into the store.
// examples/speech/quantise.py is its twin, byte for byte.
func talk(t *bus.Task, d *bus.Delivery) error {
	coeffs, shape, err := chunkOf(d)
	if err != nil {
		return err
	}
	quality, err := strconv.ParseFloat(d.Attrs[AttrQuality], 64)
	if err != nil {
		return fmt.Errorf("attribute %s: %w", AttrQuality, err)
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

// chunkOf views a delivery's tensor as a chunk.
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
	if len(x.Shape) != 3 {
		return nil, s, fmt.Errorf("coefficients of shape %v: it must be [frame][channel][coefficient]", x.Shape)
	}
	rate, err := strconv.Atoi(d.Attrs[AttrRate])
	if err != nil {
		return nil, s, fmt.Errorf("attribute %s: %w", AttrRate, err)
	}
	samples, err := strconv.Atoi(d.Attrs[AttrSamples])
	if err != nil {
		return nil, s, fmt.Errorf("attribute %s: %w", AttrSamples, err)
	}
	s = codec.Shape{Rate: rate, Frames: x.Shape[0], Channels: x.Shape[1], Hop: x.Shape[2], Samples: samples}
	return coeffs, s, nil
}

// voice is the state of the vocoder between two chunks of a request.
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
