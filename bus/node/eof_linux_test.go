package node_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestFailureIsNotTheEnd: a request whose stage fails with an error that wraps io.EOF is not taken
// for a complete one.
func TestFailureIsNotTheEnd(t *testing.T) {
	short := bus.StageSpec{Name: "short", Handle: func(*bus.Task, *bus.Delivery) error {
		return fmt.Errorf("the model's file: %w", io.EOF)
	}}
	h := serveAll(t, testbus.Linear(short), bus.Options{})
	for name, s := range map[string]testbus.Submitter{
		"in one process":                  testbus.Open(t, testbus.Linear(short), bus.Options{}),
		"of the host's, served by a node": h.bus,
		"of a node's":                     h.join(t, node.JoinOptions{}),
		"of a node's, served by the host": listen(t, testbus.Linear(short), bus.Options{}).join(t, node.JoinOptions{}),
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				r := testbus.StreamOf(t, s)
				if err := r.Send(t.Context(), "x", bus.Last()); err != nil {
					t.Fatal(err)
				}
				var err error
				for _, err = range r.Results(t.Context()) {
				}
				var at *bus.StageError
				if !errors.As(err, &at) || at.Stage != "short" || r.Outcome() != bus.Failed {
					t.Errorf("the results end with %v, the request with %v, %v", err, r.Outcome(), r.Err())
				}
				if _, err := r.Recv(t.Context()); errors.Is(err, io.EOF) || !errors.As(err, &at) {
					t.Errorf("received %v, as if all results had come", err)
				}
			}
		})
	}
}
