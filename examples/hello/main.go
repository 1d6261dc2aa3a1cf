// Command hello is the smallest program on the bus: one stage that takes and
// gives values of Go types, and one request.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/omnibus-runtime/omnibus/bus"
)

func greet(_ *bus.Task, name string) (string, error) { return "Hello, " + name + "!", nil }

func main() {
	if err := run(context.Background(), bus.Options{}); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, opts bus.Options) (err error) {
	b, err := bus.Open(ctx, bus.Pipeline{Stages: []bus.StageSpec{bus.Stage("greet", greet)}}, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	r, err := b.Submit(ctx, "world")
	if err != nil {
		return err
	}
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		text, err := bus.Result[string](d)
		if err != nil {
			return err
		}
		fmt.Println(text)
	}
	return nil
}
