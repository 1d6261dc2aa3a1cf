package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// ErrBuild reports a valid file that cannot become a bus in this process.
var ErrBuild = errors.New("config: cannot build the pipeline")

// Work is what a handler's factory learns of the stage that it makes: all
// that the file says of it, and of the edges on both sides, whose connectors
// may carry settings for the stage (such as codec_chunk_frames).
type Work struct {
	Stage Stage
	In    []Edge
	Out   []Edge
}

// Factory makes the work of a stage: a specification with one of Handle, Join,
// Batch and Props set. What the file says of the stage is filled in afterwards
// and wins.
type Factory func(Work) (bus.StageSpec, error)

// Build turns the file into a pipeline and options for [bus.Open], with all
// stages in this process. Handlers are looked up by [Stage.Handler]. All
// problems are reported at once; the error wraps [ErrBuild], or
// [ErrNoTransport].
func (p *Pipeline) Build(handlers map[string]Factory) (bus.Pipeline, bus.Options, error) {
	return p.build(func(st Stage) (bus.StageSpec, error) {
		if st.Remote() {
			return bus.StageSpec{}, errors.New("it is a process of its own (exec or attach), and this program runs stages inside itself: use `omnibus run`, or remove the setting and register a handler")
		}
		return p.buildLocal(st, handlers)
	})
}

// BuildHost is Build for a process that hosts the bus: stages with exec or
// attach become [bus.Remote], and only the others need handlers. The store is
// in shared memory.
func (p *Pipeline) BuildHost(handlers map[string]Factory) (bus.Pipeline, bus.Options, error) {
	pipeline, opts, err := p.build(func(st Stage) (bus.StageSpec, error) {
		switch _, registered := handlers[st.Handler]; {
		case st.Remote():
			return buildRemote(st), nil
		case !registered:
			return bus.StageSpec{}, fmt.Errorf(`nothing does its work: add omnibus: {exec: ["python3", "%s.py"]} to start a process for it, or omnibus: {attach: true} if another program starts one`, fileName(st.ID))
		}
		return p.buildLocal(st, handlers)
	})
	opts.Store.Memory = shmstore.Shared
	return pipeline, opts, err
}

// CheckHost reports what a host would refuse of a pipeline whose stages are all processes:
// a graph that cannot be, or windows that do not fit the store; and else the bounds of its
// edges. Of one with handlers it says nothing, because these have a word in it. The errors are
// those of [Pipeline.BuildHost] and of [bus.Open].
func (p *Pipeline) CheckHost() ([]bus.EdgeBounds, error) {
	if runnable := p.Runnable() == nil; !runnable || slices.ContainsFunc(p.Stages, func(st Stage) bool { return !st.Remote() }) {
		return nil, nil
	}
	spec, opts, err := p.BuildHost(nil)
	if err != nil {
		return nil, err
	}
	opts.Wait = bus.WaitBalanced // one of the environment is not the file's
	bounds, err := spec.Bounds(opts)
	for i, b := range bounds {
		for _, e := range p.Edges {
			if most := e.Connector.largestValue(); e.From == b.From && e.To == b.To && most > 0 {
				bounds[i].Largest, bounds[i].Window = min(b.Largest, most), min(b.Window, most)
			}
		}
	}
	return bounds, p.Refused(err)
}

// Refused says of an error of [bus.Open] where the file has what was refused.
func (p *Pipeline) Refused(err error) error {
	switch {
	case errors.Is(err, shmstore.ErrOptions):
		return fmt.Errorf("%s: ring_bytes or slots, under omnibus: %w", p.File, err)
	case errors.Is(err, bus.ErrWindows):
		return fmt.Errorf("%s: ring_bytes or max_requests, under omnibus, max_inflight of a stage, or window_bytes of an edge: %w", p.File, err)
	case errors.Is(err, bus.ErrConfig):
		return fmt.Errorf("%s: %w", p.File, err)
	}
	return err
}

// fileName is a name for an example.
func fileName(id string) string {
	if name := toName(id); name == id {
		return name
	}
	return "stage"
}

func buildRemote(st Stage) bus.StageSpec {
	spec := bus.StageSpec{Remote: &bus.Remote{
		Join: st.Join, Routing: named[bus.Routing](st.Routing), Batch: st.Batch.Size, HandleTimeout: st.HandleTimeout, FirstTimeout: st.FirstTimeout,
	}}
	st.overlay(&spec)
	return spec
}

// build builds the bus of stages that are built one by one.
func (p *Pipeline) build(stage func(Stage) (bus.StageSpec, error)) (bus.Pipeline, bus.Options, error) {
	var out bus.Pipeline
	errs := []error{p.Runnable()}
	for _, st := range p.Stages {
		spec, err := stage(st)
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: %s:%d:%d: stage %s: %w", ErrBuild, cmp.Or(st.Pos.File, p.File), st.Pos.Line, st.Pos.Column, st.ID, err))
		}
		out.Stages = append(out.Stages, spec)
	}
	for _, e := range slices.Concat(p.Edges, p.CallerEdges) {
		out.Edges = append(out.Edges, bus.Edge{
			From: e.From, To: e.To,
			Window:      e.WindowSize, // -1 means the same to the bus
			WindowBytes: e.WindowBytes,
			Policy:      named[bus.Policy](e.Policy),
			InlineBytes: e.Connector.inlineBytes(),
			Tensors:     named[bus.TensorTransport](e.TensorTransport), TensorMinBytes: e.MinBytes,
		})
	}
	for _, st := range p.Stages {
		listed := slices.ContainsFunc(p.CallerEdges, func(e Edge) bool { return e.From == st.ID })
		// A last stage's output goes to the caller anyway.
		if _, next := p.edgesOf(st.ID); st.FinalOutput && len(next) > 0 && !listed {
			out.Edges = append(out.Edges, bus.Edge{From: st.ID})
		}
	}
	return out, p.Bus.options(p.Name), errors.Join(errs...)
}

// enumeration is one of the bus's, whose values count from 0 and have the words of pipeline files.
type enumeration interface {
	~int | ~uint8
	fmt.Stringer
	Valid() bool
}

// wordsOf are the words of an enumeration.
func wordsOf[W ~string, T enumeration]() (words []W) {
	for v := T(0); v.Valid(); v++ {
		words = append(words, W(v.String()))
	}
	return words
}

// named is the value that a word of an enumeration stands for, and the first one without a word.
func named[T enumeration, W ~string](word W) T {
	return T(max(slices.Index(wordsOf[W, T](), word), 0))
}

func (p *Pipeline) buildLocal(st Stage, handlers map[string]Factory) (bus.StageSpec, error) {
	factory, ok := handlers[st.Handler]
	if !ok {
		known := slices.Sorted(maps.Keys(handlers))
		return bus.StageSpec{}, fmt.Errorf("there is no handler %q: register it, or name one of %s with omnibus.handler", st.Handler, strings.Join(known, ", "))
	}
	in, out := p.edgesOf(st.ID)
	spec, err := factory(Work{Stage: st, In: in, Out: out})
	if err != nil {
		return spec, fmt.Errorf("handler %q: %w", st.Handler, err)
	}
	if st.Join != (spec.Join != nil) {
		return spec, fmt.Errorf("omnibus.join is %v, but the handler %q makes it %v", st.Join, st.Handler, spec.Join != nil)
	}
	st.overlay(&spec)
	return spec, nil
}

func (p *Pipeline) edgesOf(id string) (in, out []Edge) {
	for _, e := range p.Edges {
		if e.To == id {
			in = append(in, e)
		}
		if e.From == id {
			out = append(out, e)
		}
	}
	return in, out
}

// overlay puts what the file says over what the factory chose.
func (s *Stage) overlay(spec *bus.StageSpec) {
	spec.Name = s.ID
	set(&spec.Replicas, s.Replicas)
	set(&spec.MaxInflight, s.MaxInflight)
	set(&spec.BatchSize, s.Batch.Size)
	set(&spec.BatchWait, s.Batch.Wait)
	set(&spec.Attempts, s.Attempts)
	spec.Replay = spec.Replay || s.Replay
	switch s.State {
	case StateNone:
		spec.State = bus.StateNone
	case StateRequest:
		spec.State = bus.StateRequest
	}
}

// set overwrites *v unless the file is silent.
func set[T comparable](v *T, to T) {
	var silent T
	if to != silent {
		*v = to
	}
}

func (b Bus) options(name string) bus.Options {
	o := bus.Options{
		Name:         name,
		MaxRequests:  b.MaxRequests,
		InlineBytes:  int(b.InlineBytes),
		StallTimeout: b.StallTimeout,
		ExchangeTTL:  b.ExchangeTTL,
		Store:        shmstore.Options{ArenaBytes: b.RingBytes, Slots: b.Slots, MaxLargeBytes: b.LargeBytes},
	}
	switch b.Serializer {
	case SerializerOmni:
		o.Serializer = omni.Serializer{}
	case SerializerRaw:
		o.Serializer = codec.RawSerializer{}
	case SerializerMsgpack:
		o.Serializer = codec.MsgpackSerializer{}
	}
	switch b.Memory {
	case MemoryShared:
		o.Store.Memory, o.ExchangeStore.Memory = shmstore.Shared, shmstore.Shared
	case MemoryHeap:
		o.Store.Memory, o.ExchangeStore.Memory = shmstore.Heap, shmstore.Heap
	}
	return o
}
