package node_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// manyAttrs are n attributes, with names and values of certain lengths.
func manyAttrs(n, name, value int) []bus.EmitOption {
	var opts []bus.EmitOption
	for i := range n {
		opts = append(opts, bus.Attr(fmt.Sprintf("%0*d", name, i), strings.Repeat("v", value)))
	}
	return opts
}

// badLabels are keys and attributes that no message between processes takes, and the field that the
// error has to name.
var badLabels = map[string]struct {
	opts  []bus.EmitOption
	field string
}{
	"long key":         {[]bus.EmitOption{bus.Key(strings.Repeat("k", wire.MaxName+1))}, "key"},
	"key not in UTF-8": {[]bus.EmitOption{bus.Key("\xff")}, "key"},
	"many attributes":  {manyAttrs(wire.MaxAttrs+1, 2, 1), "attributes"},
	"long name":        {manyAttrs(1, wire.MaxAttrName+1, 1), "attributes"},
	"long value":       {manyAttrs(1, 1, wire.MaxAttrValue+1), "attributes"},
	"no name":          {[]bus.EmitOption{bus.Attr("", "value")}, "attributes"},
	"value not UTF-8":  {[]bus.EmitOption{bus.Attr("name", "\xff")}, "attributes"},
}

// refuseLabels emits with each of badLabels, and reports those that were not refused with the right
// field.
func refuseLabels(emit func(opts ...bus.EmitOption) error) error {
	var errs []error
	for name, bad := range badLabels {
		var malformed *messages.MalformedError
		if err := emit(bad.opts...); !errors.As(err, &malformed) || malformed.Field != bad.field {
			errs = append(errs, fmt.Errorf("%s: got %v", name, err)) //nolint:errorlint // it may be nil
		}
	}
	return errors.Join(errs...)
}

// TestLabelsAreCheckedAtEmit: a key or an attribute that cannot go to another process is refused
// when it is given, in one process and between processes. Nothing is sent or stays reserved, and
// the stream continues with the longest valid labels.
func TestLabelsAreCheckedAtEmit(t *testing.T) {
	longest := append(manyAttrs(wire.MaxAttrs, wire.MaxAttrName, wire.MaxAttrValue), bus.Key(strings.Repeat("k", wire.MaxName)))
	stage := bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
		if len(d.Attrs) != wire.MaxAttrs || len(d.Key) != wire.MaxName {
			return fmt.Errorf("a key of %d bytes, and %d attributes", len(d.Key), len(d.Attrs))
		}
		buffers := func(opts ...bus.EmitOption) error {
			b, err := t.Reserve(1000, codec.IDRaw)
			if err != nil {
				return nil //nolint:nilerr // refuseLabels reports the missing refusal
			}
			return b.Send(1000, opts...)
		}
		for what, emit := range map[string]func(opts ...bus.EmitOption) error{
			"small":   func(opts ...bus.EmitOption) error { return t.Emit("x", opts...) },
			"large":   func(opts ...bus.EmitOption) error { return t.Emit(strings.Repeat("x", 1000), opts...) },
			"forward": func(opts ...bus.EmitOption) error { return t.Forward(d, opts...) },
			"buffer":  buffers,
			"tensors": func(opts ...bus.EmitOption) error { return t.EmitTensors("x", bus.TensorOptions{}, opts...) },
		} {
			if err := refuseLabels(emit); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return t.Forward(d, longest...)
	}}
	p := testbus.Linear(stage)
	p.Edges = []bus.Edge{{To: "a", Window: 1}, {From: "a", Window: 1}} // no slot stays reserved
	type stream func() (*bus.Request, error)
	inProcess := testbus.Open(t, p, bus.Options{})
	h := serveAll(t, p, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	for name, begin := range map[string]stream{
		"in process":          func() (*bus.Request, error) { return inProcess.Stream(t.Context()) },
		"to a process":        func() (*bus.Request, error) { return h.bus.Stream(t.Context()) },
		"through the host":    func() (*bus.Request, error) { return n.Stream(t.Context()) },
		"through it, a trace": func() (*bus.Request, error) { return n.Stream(t.Context(), bus.WithTrace(longestTrace(0))) },
	} {
		t.Run(name, func(t *testing.T) {
			r, err := begin()
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range []string{"x", strings.Repeat("x", 1000)} {
				err := refuseLabels(func(opts ...bus.EmitOption) error { return r.Send(t.Context(), v, opts...) })
				if err != nil {
					t.Error(err)
				}
			}
			for _, v := range []string{"x", strings.Repeat("x", 1000)} {
				if err := r.Send(t.Context(), v, longest...); err != nil {
					t.Fatal(err)
				}
				d, err := r.Recv(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if len(d.Attrs) != wire.MaxAttrs || len(d.Key) != wire.MaxName || d.Seq > 1 {
					t.Errorf("a key of %d bytes, and %d attributes, sequence %d", len(d.Key), len(d.Attrs), d.Seq)
				}
				_ = d.Finish(nil)
			}
			if err := r.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			testbus.MustReceive(t, r, nil)
		})
	}
}

// longestTrace has a state that exceeds the limit by some bytes.
func longestTrace(more int) messages.TraceContext {
	return messages.TraceContext{TraceID: [16]byte{1}, SpanID: [8]byte{1}, State: strings.Repeat("s", wire.MaxTraceState+more)}
}

// TestTraceIsCheckedAtSubmit: a trace that cannot go to another process is refused by Submit, in
// one process and between processes.
func TestTraceIsCheckedAtSubmit(t *testing.T) {
	h := serveAll(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	for name, submit := range map[string]func() (*bus.Request, error){
		"the host": func() (*bus.Request, error) { return h.bus.Submit(t.Context(), "x", bus.WithTrace(longestTrace(1))) },
		"tries":    func() (*bus.Request, error) { return h.bus.TrySubmit(t.Context(), "x", bus.WithTrace(longestTrace(1))) },
		"a node":   func() (*bus.Request, error) { return n.Submit(t.Context(), "x", bus.WithTrace(longestTrace(1))) },
	} {
		r, err := submit()
		var malformed *messages.MalformedError
		if !errors.As(err, &malformed) || malformed.Field != "trace" {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			r.Close()
		}
	}
	r, err := n.Submit(t.Context(), "x", bus.WithTrace(longestTrace(0)))
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"X"})
}

// TestLongestNames: each name that a bus accepts fits into the messages to other processes.
func TestLongestNames(t *testing.T) {
	if b, err := bus.Open(t.Context(), testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{Name: strings.Repeat("b", 201)}); !errors.Is(err, bus.ErrConfig) {
		t.Errorf("got %v, %v", b, err)
	}
	first, second := strings.Repeat("a", 99), strings.Repeat("b", 99)
	h := serveAll(t, testbus.Linear(bus.Stage(first, testbus.Upper), bus.Stage(second, testbus.Upper)), bus.Options{Name: strings.Repeat("n", 200)})
	r, err := h.join(t, node.JoinOptions{}).Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	testbus.MustReceive(t, r, []string{"X"})
}
