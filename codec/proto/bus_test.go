package proto_test

import (
	"context"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/omnibus-runtime/omnibus/bus"
	codecproto "github.com/omnibus-runtime/omnibus/codec/proto"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestBus has a stage that takes and gives messages.
func TestBus(t *testing.T) {
	length := bus.Stage("length", func(_ *bus.Task, in *wrapperspb.StringValue) (*wrapperspb.UInt32Value, error) {
		return wrapperspb.UInt32(uint32(len(in.Value))), nil
	})
	b, err := bus.Open(t.Context(), bus.Pipeline{Stages: []bus.StageSpec{length}},
		bus.Options{Serializer: codecproto.Serializer{}, Store: shmstore.Options{ArenaBytes: 1 << 20}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	request, err := b.Submit(t.Context(), wrapperspb.String("seven"))
	if err != nil {
		t.Fatal(err)
	}
	var got []uint32
	for d, err := range request.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		m, err := bus.Result[*wrapperspb.UInt32Value](d)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, m.GetValue())
	}
	if len(got) != 1 || got[0] != 5 {
		t.Errorf("results %v, want 5", got)
	}
}
