package bundle_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestBus sends values with tensors in them through a bus with this serializer,
// and through one with another, which also decodes bundles.
func TestBus(t *testing.T) {
	emit := func(e bus.Emitter, v any, opts ...bus.EmitOption) error { return e.Emit(v, opts...) }
	for _, tt := range []struct {
		name       string
		serializer codec.Serializer
		emit       func(bus.Emitter, any, ...bus.EmitOption) error
	}{
		{"bundle", bundle.Serializer{}, emit},
		{"msgpack", nil, func(e bus.Emitter, v any, opts ...bus.EmitOption) error {
			return e.EmitTensors(v, bus.TensorOptions{}, opts...)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			throughBus(t, tt.serializer, tt.emit)
		})
	}
}

func throughBus(t *testing.T, s codec.Serializer, emit func(bus.Emitter, any, ...bus.EmitOption) error) {
	pass := bus.StageSpec{Name: "pass", Handle: func(task *bus.Task, d *bus.Delivery) error {
		var v any
		if err := d.Decode(&v); err != nil {
			return err
		}
		return emit(task.Emitter, v)
	}}
	b, err := bus.Open(t.Context(), bus.Pipeline{Stages: []bus.StageSpec{pass}},
		bus.Options{Serializer: s, Store: shmstore.Options{ArenaBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	want := map[string]any{"hidden": []any{tensor(codec.DTypeFloat32, string(make([]byte, 4096)), 1024), "x"}, "step": int64(1)}
	request, err := b.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := emit(request.Input(t.Context()), want, bus.Last()); err != nil {
		t.Fatal(err)
	}
	results := 0
	for d, err := range request.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Bare() {
			continue
		}
		got, err := bus.Result[any](d)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(any(want), got); diff != "" || d.PayloadCodec() != codec.IDBundle {
			t.Errorf("codec %d: %s", d.PayloadCodec(), diff)
		}
		results++
	}
	if results != 1 {
		t.Errorf("%d results", results)
	}
}
