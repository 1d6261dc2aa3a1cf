// Command protobuf is a bus whose values are Protocol Buffers messages. Its stage
// takes and gives messages of generated types; those of the library stand in for
// a program's own. Payloads are the wire format of one message each.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec/proto"
)

func count(_ *bus.Task, text *wrapperspb.StringValue) (*wrapperspb.UInt32Value, error) {
	return wrapperspb.UInt32(uint32(utf8.RuneCountInString(text.GetValue()))), nil //nolint:gosec // of a payload
}

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) (err error) {
	pipeline := bus.Pipeline{Stages: []bus.StageSpec{bus.Stage("count", count)}}
	b, err := bus.Open(ctx, pipeline, bus.Options{Serializer: proto.Serializer{}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	r, err := b.Submit(ctx, wrapperspb.String("naïve"))
	if err != nil {
		return err
	}
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		n, err := bus.Result[*wrapperspb.UInt32Value](d)
		if err != nil {
			return err
		}
		fmt.Println(n.GetValue(), "characters, in a payload of", len(d.Bytes()), "bytes")
	}
	return nil
}
