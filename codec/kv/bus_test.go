package kv_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec/kv"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestBus has a stage take a cache and pass on half of it: views of what came
// in are what it sends.
func TestBus(t *testing.T) {
	half := bus.Stage("half", func(_ *bus.Task, in kv.Payload) (kv.Payload, error) {
		in.Layers = in.Layers[:len(in.Layers)/2]
		return in, nil
	})
	b, err := bus.Open(t.Context(), bus.Pipeline{Stages: []bus.StageSpec{half}},
		bus.Options{Serializer: kv.Serializer{}, Store: shmstore.Options{ArenaBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	want := sample(t)
	request, err := b.Submit(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	want.Layers = want.Layers[:len(want.Layers)/2]
	results := 0
	for d, err := range request.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got, err := bus.Result[kv.Payload](d)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
		results++
	}
	if results != 1 {
		t.Errorf("%d results", results)
	}
}
