package node_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// emitting has a thin client serve the only stage of a pipeline, with an open task.
func emitting(t *testing.T, h *hosted) (c *thinClient, r *bus.Request, source uint32) {
	t.Helper()
	c = dialThin(t, h.path)
	c.await(wire.KindWelcome)
	c.send(&wire.Serve{Token: 1, Stage: "m"})
	c.await(wire.KindServing)
	r = submitAll(t, h.bus, "x")
	t.Cleanup(r.Close)
	return c, r, c.await(wire.KindDeliver).(*wire.Deliver).Source
}

// TestPutAfterLastFailsRequest: a put that the host cannot send has no answer, so that its request
// fails: no payload may be lost unnoticed.
func TestPutAfterLastFailsRequest(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	c, r, source := emitting(t, h)
	last, more := inMessage(1, source, "the last"), inMessage(2, source, "x")
	last.Flags |= wire.FlagLast
	more.Key = "more"
	c.send(last)
	c.send(more)
	c.await(wire.KindOver)
	at, ok := errors.AsType[*bus.StageError](r.Wait(t.Context()))
	if !ok || at.Stage != "m" || at.Edge != "m->" || at.Key != "more" || at.Seq != 1 || r.Outcome() != bus.Failed {
		t.Errorf("the request ended with %v", r.Wait(t.Context()))
	}
}

// TestAbortReasonIsNotRepeated: the reason of an abort is in the error once, in each process.
func TestAbortReasonIsNotRepeated(t *testing.T) {
	for want, reason := range map[string]error{
		"bus: request aborted":         nil,
		"bus: request aborted: enough": errors.New("enough"),
	} {
		t.Run(want, func(t *testing.T) {
			h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
			n := h.join(t, node.JoinOptions{})
			c := dialThin(t, h.path)
			c.send(&wire.Serve{Token: 1, Stage: "m"})
			c.await(wire.KindServing)
			r, err := n.Submit(t.Context(), "x")
			if err != nil {
				t.Fatal(err)
			}
			c.await(wire.KindDeliver)
			r.Abort(reason)
			if m := c.await(wire.KindOver).(*wire.Over); m.Outcome != wire.OutcomeAborted || m.Text != want {
				t.Errorf("%+v, want %q", m, want)
			}
		})
	}
}

// TestHandlerErrorKeepsItsPlace: a handler's text around an emission's error reaches the caller
// together with the place of the error, for stages and callers in any process.
func TestHandlerErrorKeepsItsPlace(t *testing.T) {
	for what, spec := range map[string]bus.StageSpec{
		"frame": {Name: "m", Handle: func(t *bus.Task, _ *bus.Delivery) error {
			_, err := t.Reserve(1<<46, codec.IDRaw, bus.Key("k")) // more than any machine has
			return fmt.Errorf("frame 7: %w", err)
		}},
		"end": {Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return nil }, End: func(t *bus.Task) error {
			_, err := t.Reserve(1<<46, codec.IDRaw, bus.Key("k")) // more than any machine has
			return fmt.Errorf("frame 7: %w", err)
		}},
	} {
		for _, remote := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, remote %t", what, remote), func(t *testing.T) {
				p := testbus.Linear(spec)
				if remote {
					p = testbus.Remotes(p)
				}
				h := listen(t, p, storeOptions)
				n := h.join(t, node.JoinOptions{})
				if remote {
					h.serve(t, spec)
				}
				for caller, submit := range map[string]func(context.Context, any, ...bus.SubmitOption) (*bus.Request, error){"host": h.bus.Submit, "node": n.Submit} {
					r, err := submit(t.Context(), "x")
					if err != nil {
						t.Fatal(err)
					}
					err = r.Wait(t.Context())
					at, ok := errors.AsType[*bus.StageError](err)
					want := bus.StageError{Stage: "m", Edge: "m->", Key: "k"}
					if remote && what == "frame" { // the place of the delivery; the text has the emission's
						want.Edge, want.Key = "->m", ""
					}
					if !ok || at.Stage != want.Stage || at.Edge != want.Edge || at.Key != want.Key || at.Seq != 0 {
						t.Errorf("%s: not the place: %v", caller, err)
					}
					for _, once := range []string{"frame 7: ", "payload too large", "m->, sequence 0", "end of stream: "} {
						want := 1
						if once == "end of stream: " && what != "end" {
							want = 0
						}
						if n := strings.Count(err.Error(), once); n != want {
							t.Errorf("%s: %q is there %d times: %v", caller, once, n, err)
						}
					}
					r.Close()
				}
			})
		}
	}
}

// TestErrorOfAnotherRequest: the error of a failed request names the request's own stage and
// delivery, even if its handler failed with the error of another request, of this or of another
// bus.
func TestErrorOfAnotherRequest(t *testing.T) {
	inner := &bus.StageError{Stage: "inner", Edge: "a->inner", Key: "other", Seq: 5, Err: errors.New("boom")}
	spec := bus.StageSpec{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return inner }}
	for _, remote := range []bool{false, true} {
		t.Run(fmt.Sprintf("remote %t", remote), func(t *testing.T) {
			p := testbus.Linear(spec)
			if remote {
				p = testbus.Remotes(p)
			}
			h := listen(t, p, storeOptions)
			if remote {
				h.serve(t, spec)
			}
			r := submitAll(t, h.bus, "x")
			defer r.Close()
			err := r.Wait(t.Context())
			at, ok := errors.AsType[*bus.StageError](err)
			if !ok || at.Stage != "m" || at.Edge != "->m" || at.Key != "" || at.Seq != 0 || !strings.Contains(err.Error(), `stage "inner": edge a->inner, sequence 5, key "other": boom`) {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}
