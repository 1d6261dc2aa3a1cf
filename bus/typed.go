package bus

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Stage describes a stage that turns each input into one output. The values
// travel through the bus's serializer; a codec.Tensor input is a view of shared
// memory that is valid during the call.
//
// The types are checked when the bus opens: an edge whose ends do not agree is
// an error there.
func Stage[In, Out any](name string, f func(t *Task, in In) (Out, error)) StageSpec {
	return StageSpec{
		Name: name,
		in:   []reflect.Type{reflect.TypeFor[In]()}, out: reflect.TypeFor[Out](),
		Handle: func(t *Task, d *Delivery) error {
			in, err := decode[In](d)
			if err != nil {
				return err
			}
			out, err := f(t, in)
			if err != nil {
				return err
			}
			if t.endsWith(d) {
				return t.Emit(out, Last())
			}
			return t.Emit(out)
		},
	}
}

// Expand describes a stage that turns each input into any number of outputs,
// emitted as they come: a generator of tokens, a splitter, a filter.
func Expand[In, Out any](name string, f func(t *Task, in In, emit func(Out) error) error) StageSpec {
	return StageSpec{
		Name: name,
		in:   []reflect.Type{reflect.TypeFor[In]()}, out: reflect.TypeFor[Out](),
		Handle: func(t *Task, d *Delivery) error {
			in, err := decode[In](d)
			if err != nil {
				return err
			}
			return f(t, in, func(out Out) error { return t.Emit(out) })
		},
	}
}

// Join2 describes a stage that joins two branches of a request: the n-th
// input of one with the n-th of the other. a and b are in the order in which the
// pipeline lists the edges; unlike the parameters of a function in Python, they
// are not matched to stages by name.
func Join2[A, B, Out any](name string, f func(t *Task, a A, b B) (Out, error)) StageSpec {
	return StageSpec{
		Name: name,
		in:   []reflect.Type{reflect.TypeFor[A](), reflect.TypeFor[B]()}, out: reflect.TypeFor[Out](),
		Join: func(t *Task, parts []*Delivery) error {
			a, err := decode[A](parts[0])
			if err != nil {
				return err
			}
			b, err := decode[B](parts[1])
			if err != nil {
				return err
			}
			out, err := f(t, a, b)
			if err != nil {
				return err
			}
			return t.Emit(out)
		},
	}
}

// decode reads a payload as the type that a stage takes.
func decode[T any](d *Delivery) (T, error) {
	var v T
	if t, ok := any(&v).(*codec.Tensor); ok {
		var err error
		*t, err = d.Tensor()
		return v, err
	}
	err := d.Decode(&v)
	return v, err
}

// Result decodes a result received from a request, or any other delivery.
func Result[T any](d *Delivery) (T, error) { return decode[T](d) }

// endsWith reports whether d is the last input of the task: the emission for it
// may be marked as the last output.
func (t *Task) endsWith(d *Delivery) bool {
	return d.EOS && len(t.stage.in) == 1 && t.stage.spec.End == nil
}

// checkTypes compares the types at both ends of each edge, where both are
// known.
func (g *graph) checkTypes() error {
	for _, st := range g.stages {
		var from []string
		for _, e := range st.in {
			from = append(from, e.spec.From)
		}
		if err := st.spec.CheckInputs(from); err != nil {
			return err
		}
	}
	for _, e := range g.edges {
		if e.from == nil {
			continue
		}
		if out, in := e.from.spec.out, e.inputType(); out != nil && in != nil && out != in {
			return fmt.Errorf("%w: edge %s: stage %q emits %v, stage %q takes %v%s", ErrConfig, e.name, e.from.spec.Name, out, e.to.spec.Name, in, e.inputPosition())
		}
	}
	return nil
}

// CheckInputs returns an error unless the function of the stage can take the inputs of these stages.
func (s *StageSpec) CheckInputs(from []string) error {
	if len(s.in) > 1 && len(s.in) != len(from) {
		return fmt.Errorf("%w: stage %q: its function joins %d branches, and the pipeline gives it %d: %s", ErrConfig, s.Name, len(s.in), len(from), strings.Join(from, ", "))
	}
	return nil
}

// inputType is the type that the consumer takes from the edge; nil: it is unknown.
func (e *edge) inputType() reflect.Type {
	if e.to == nil || e.in >= len(e.to.spec.in) && len(e.to.spec.in) != 1 {
		return nil
	}
	return e.to.spec.in[min(e.in, len(e.to.spec.in)-1)]
}

// inputPosition says which of several inputs of its stage the edge is.
func (e *edge) inputPosition() string {
	if len(e.to.spec.in) < 2 {
		return ""
	}
	return fmt.Sprintf(" as its input %d: the pipeline lists the edges in the order of the function's parameters", e.in+1)
}

// checkInput compares the type of an input with the input types of the first stages, where they are known.
func (g *graph) checkInput(v any) error {
	for _, e := range g.inputs {
		in := e.inputType()
		if in == nil || v == nil {
			continue
		}
		if given := reflect.TypeOf(v); given != in && (in.Kind() != reflect.Interface || !given.Implements(in)) {
			return fmt.Errorf("%w: the input is %v, and stage %q takes %v", ErrPayload, given, e.to.spec.Name, in)
		}
	}
	return nil
}
