package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The pipeline:
//
//	             ┌─ b (Python) ─┐
//	caller ── a ─┤              ├─ e (join) ── c (state, replay) ── caller
//	             └─ d (forward) ┘
//
// All stages but d make a new payload of each input; c makes two. The windows are
// small, so that the producers and consumers of a killed process are waiting for it.
const (
	maxInputs     = 8 // of a request
	outputsOfC    = 2
	maxRequests   = 10
	stageReplicas = 2
	stageInflight = 2 // fewer than there are requests: some wait for a permit

	window      = 4
	windowBytes = 2*maxPayloadBytes + 64<<10
	// c keeps the inputs of a request for a replay.
	replayBytes = maxInputs * (maxPayloadBytes + 4<<10)

	storeBytes = 160 << 20

	// maxAttempts is more than the kills that any delivery meets.
	maxAttempts = 1 << 20
)

// stageNames are the stages, in the order of the pipeline.
var stageNames = []string{"a", "b", "d", "e", "c"}

func pipeline() bus.Pipeline {
	var p bus.Pipeline
	for _, name := range stageNames {
		spec := bus.StageSpec{
			Name: name, Remote: &bus.Remote{Join: name == "e"}, Replicas: stageReplicas, MaxInflight: stageInflight,
			State: bus.StateNone, Attempts: maxAttempts,
		}
		if name == "c" {
			spec.State, spec.Replay = bus.StateRequest, true
		}
		p.Stages = append(p.Stages, spec)
	}
	for _, e := range [][2]string{{"", "a"}, {"a", "b"}, {"a", "d"}, {"b", "e"}, {"d", "e"}, {"e", "c"}, {"c", ""}} {
		edge := bus.Edge{From: e[0], To: e[1], Window: window, WindowBytes: windowBytes}
		if e[1] == "c" {
			edge.WindowBytes = replayBytes
		}
		p.Edges = append(p.Edges, edge)
	}
	return p
}

func busOptions() bus.Options {
	return bus.Options{
		Name: "chaos", MaxRequests: maxRequests, StallTimeout: stallTimeout,
		Store: shmstore.Options{ArenaBytes: storeBytes, Memory: shmstore.Shared},
	}
}

// submitter is a bus, or a node of one.
type submitter interface {
	Stream(ctx context.Context, opts ...bus.SubmitOption) (*bus.Request, error)
}

// roundTrip sends one request and checks all results. An error has the outcome of
// the request, and what was wrong with a result.
func roundTrip(ctx context.Context, s submitter, tag uint32, inputs int) error {
	r, err := s.Stream(ctx)
	if err != nil {
		return fmt.Errorf("start request %#x: %w", tag, err)
	}
	sent := make(chan error, 1)
	go func() { sent <- sendInputs(ctx, r, tag, inputs) }()
	err = receive(ctx, r, tag, uint64(inputs*outputsOfC))
	r.Close()
	if sendErr := <-sent; err == nil && sendErr != nil {
		err = fmt.Errorf("send inputs: %w", sendErr)
	}
	if err != nil {
		return fmt.Errorf("request %d (%#x, %d inputs), %v: %w", r.ID(), tag, inputs, r.Outcome(), err)
	}
	return nil
}

func sendInputs(ctx context.Context, r *bus.Request, tag uint32, inputs int) error {
	for seq := range uint64(inputs) {
		if err := r.Input(ctx).EmitBytes(payload(tag, levelInput, seq)); err != nil {
			return err
		}
	}
	return r.CloseSend(ctx)
}

// receive checks that exactly the wanted results arrive, in order, before the
// request completes.
func receive(ctx context.Context, r *bus.Request, tag uint32, want uint64) error {
	var next uint64
	for {
		d, err := r.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF) && next == want:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: it completed with %d of %d results", errBroken, next, want)
		case err != nil:
			return fmt.Errorf("after %d of %d results: %w", next, want, err)
		}
		got, err := verify(d.Bytes(), levelC, next)
		if err == nil && (got != tag || d.Seq != next) {
			err = fmt.Errorf("a result of request %#x with sequence %d instead of %d", got, d.Seq, next)
		}
		if err != nil {
			return fmt.Errorf("%w: result %d: %w", errBroken, next, err)
		}
		next++
		if err := d.Finish(nil); err != nil {
			return err
		}
	}
}

// errBroken reports a wrong result.
var errBroken = errors.New("broken")
