// Command actor runs a stage that is a protoactor actor, beside a typed one:
//
//	text -> words: one at a time -> model: answers, in batches of three
//
// A stage's actor serves all of its requests. It may hold deliveries and finish
// them later, in any order: the model finishes them when it has enough for a
// batch, or when a request has no more words.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// run has a short request overtake a long one that began before it.
func run(ctx context.Context) (err error) {
	b, err := bus.Open(ctx, pipeline(newModel), bus.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()

	long, err := b.Stream(ctx)
	if err != nil {
		return err
	}
	if err := long.Send(ctx, "this"); err != nil { // a word waits for a full batch
		return err
	}
	short, err := b.Submit(ctx, "hello")
	if err != nil {
		return err
	}
	if err := show(ctx, "short", short); err != nil {
		return err
	}
	if err := errors.Join(long.Send(ctx, "one has four more"), long.CloseSend(ctx)); err != nil {
		return err
	}
	return show(ctx, "long", long)
}

func pipeline(model func() actor.Actor) bus.Pipeline {
	return bus.Pipeline{
		Stages: []bus.StageSpec{
			bus.Expand("words", words),
			{Name: "model", Props: actor.PropsFromProducer(model)},
		},
		Edges: []bus.Edge{{From: "words", To: "model"}},
	}
}

func newModel() actor.Actor { return new(model) }

func words(_ *bus.Task, text string, emit func(string) error) error {
	for word := range strings.FieldsSeq(text) {
		if err := emit(word); err != nil {
			return err
		}
	}
	return nil
}

func show(ctx context.Context, name string, r *bus.Request) error {
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		text, err := bus.Result[string](d)
		if err != nil {
			return err
		}
		fmt.Printf("%s: %s\n", name, text)
	}
	return nil
}
