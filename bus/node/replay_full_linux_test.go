package node_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

const (
	replayWindow  = 256 << 10
	replayPayload = 60 << 10 // takes 64 KiB of the store, and the header
	replayFit     = 3        // payloads in the window
)

// emitUntilRefused emits more payloads than the window keeps. It returns how many were taken, and the error of the
// first that was refused.
func emitUntilRefused(e bus.Emitter) (taken int, err error) {
	for range 10 {
		if err := e.EmitBytes(make([]byte, replayPayload)); err != nil {
			return taken, err
		}
		taken++
	}
	return taken, nil
}

// mustRefuse requires that the edge has refused the first payload that does not fit beside the kept
// ones.
func mustRefuse(t *testing.T, edge string, taken int, err error) {
	t.Helper()
	at, ok := errors.AsType[*bus.StageError](err)
	if !errors.Is(err, bus.ErrReplayFull) || !ok || at.Edge != edge || at.Seq != replayFit || taken != replayFit {
		t.Errorf("%d payloads were taken, then %v; want %d, then %v on %s at %d", taken, err, replayFit, bus.ErrReplayFull, edge, replayFit)
	}
}

// replaying is a stage that keeps its input for a replay.
func replaying() bus.StageSpec {
	return bus.StageSpec{Name: "keep", Replay: true, Handle: func(*bus.Task, *bus.Delivery) error { return nil }}
}

// TestReplayFullOfANodesStage: a stage in a node that emits more than its consumer may keep for a
// replay is refused at the same payload as a stage in the host's process, for a consumer in either
// process.
func TestReplayFullOfANodesStage(t *testing.T) {
	for name, c := range map[string]struct{ producer, consumer bool }{ // in nodes
		"consumer in the host": {producer: true},
		"consumer in a node":   {producer: true, consumer: true},
		"producer in the host": {consumer: true},
	} {
		t.Run(name, func(t *testing.T) {
			type refusal struct {
				taken int
				err   error
			}
			refused := make(chan refusal, 1)
			src := bus.StageSpec{Name: "src", Handle: func(task *bus.Task, _ *bus.Delivery) error {
				taken, err := emitUntilRefused(task.Emitter)
				refused <- refusal{taken, err}
				return err
			}}
			p := testbus.Linear(src, replaying())
			p.Edges[0].WindowBytes = replayWindow
			remote := testbus.Remotes(p)
			if !c.producer {
				remote.Stages[0] = p.Stages[0]
			}
			if !c.consumer {
				remote.Stages[1] = p.Stages[1]
			}
			h := listen(t, remote, bus.Options{})
			for i, spec := range remote.Stages {
				if spec.Remote != nil {
					h.serve(t, p.Stages[i])
				}
			}
			r := testbus.StreamOf(t, h.bus)
			if err := r.Send(t.Context(), "x", bus.Last()); err != nil {
				t.Fatal(err)
			}
			_, err := r.Recv(testbus.Soon(t))
			if at, ok := errors.AsType[*bus.StageError](err); !ok || at.Stage != "src" {
				t.Fatalf("the request ended with %v", err)
			}
			got := testbus.Next(t, refused)
			mustRefuse(t, "src->keep", got.taken, got.err)
		})
	}
}

// TestReplayFullOfANodesQueue: where the emissions of a stage in a node are queued, no emission
// waits for the refusal. The request fails instead, as with a stage in the host's process.
func TestReplayFullOfANodesQueue(t *testing.T) {
	p := testbus.Linear(bus.StageSpec{Name: "src", Batch: func(batch []*bus.Delivery) error {
		for range replayFit + 2 { // all of them are queued
			if err := batch[0].Task().EmitBytes(make([]byte, replayPayload)); err != nil {
				return err
			}
		}
		return nil
	}}, replaying())
	p.Edges[0].WindowBytes = replayWindow
	h := serveAll(t, p, bus.Options{})
	want := &bus.StageError{Stage: "src", Edge: "src->keep", Seq: replayFit, Err: bus.ErrReplayFull}
	for range 100 { // the finish of the input and the failure of the task are sent at the same time
		r := testbus.StreamOf(t, h.bus)
		if err := r.Send(t.Context(), "x", bus.Last()); err != nil {
			t.Fatal(err)
		}
		_, err := r.Recv(testbus.Soon(t))
		if err == nil || !strings.HasSuffix(err.Error(), strings.TrimPrefix(want.Error(), "bus: ")) {
			t.Fatalf("the request ended with %v", err)
		}
	}
}

// TestReplayFullOfANodesCaller: a caller in a node that sends more than the first stage may keep
// for a replay is refused at the same payload as the host's own caller, and can still end its
// inputs.
func TestReplayFullOfANodesCaller(t *testing.T) {
	for name, inNode := range map[string]struct{ caller, stage bool }{
		"of the host":                     {},
		"of a node":                       {caller: true},
		"of a node, to a stage in a node": {caller: true, stage: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := testbus.Linear(replaying())
			p.Edges = append(p.Edges, bus.Edge{To: "keep", WindowBytes: replayWindow})
			var h *hosted
			if inNode.stage {
				h = serveAll(t, p, bus.Options{})
			} else {
				h = listen(t, p, bus.Options{})
			}
			var by testbus.Submitter = h.bus
			if inNode.caller {
				by = h.join(t, node.JoinOptions{})
			}
			r := testbus.StreamOf(t, by)
			taken, err := emitUntilRefused(r.Input(testbus.Soon(t)))
			mustRefuse(t, "->keep", taken, err)
			if err := r.CloseSend(testbus.Soon(t)); err != nil {
				t.Fatal(err)
			}
			if err := r.Wait(testbus.Soon(t)); err != nil {
				t.Error(err)
			}
		})
	}
}
