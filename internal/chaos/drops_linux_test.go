package chaos

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The pipeline with an edge that drops the oldest delivery, marked ~>:
//
//	caller ── k (forward) ~> m (derive) ── caller
//
// With state of the request no delivery is handled twice, and a request fails when the first of its
// processes dies. Without state the deliveries of a dead process go to another one, and no request fails.
const (
	dropWindow = 3
	// dropPause is how long m takes for every second delivery.
	dropPause = 5 * time.Millisecond

	levelM = levelInput + 1
)

// drops is the scenario with an edge that drops.
func drops(state bus.State) scenario {
	spec, name := bus.StageSpec{State: state}, "drops"
	if state == bus.StateNone {
		spec.Attempts, name = maxAttempts, "drops, replayed"
	}
	sc := scenario{hostRequests: 1, maxPause: directKillPause, mayFail: state == bus.StateRequest, roundTrip: dropTrip, join: node.JoinOptions{
		Store: shmstore.Options{ArenaBytes: nodeBytes, LargeObjectBytes: nodeLargeBytes, MaxLargeBytes: storeBytes},
	}}
	spec.Remote, spec.Replicas, spec.MaxInflight = &bus.Remote{}, stageReplicas, stageInflight
	for _, spec.Name = range []string{"k", "m"} {
		r := role{name: "stage " + spec.Name, stage: spec.Name, env: []string{roleEnv + "=stage"}}
		for range stageReplicas {
			sc.roles = append(sc.roles, r)
		}
		sc.pipeline.Stages = append(sc.pipeline.Stages, spec)
	}
	for range 2 {
		sc.roles = append(sc.roles, role{name: "submitter", env: []string{roleEnv + "=submit"}})
	}
	sc.pipeline.Edges = []bus.Edge{
		{To: "k", Window: window, WindowBytes: windowBytes},
		{From: "k", To: "m", Window: dropWindow, WindowBytes: windowBytes, Policy: bus.DropOldest},
		{From: "m", Window: window, WindowBytes: windowBytes},
	}
	sc.options = busOptions()
	return sc.named(name)
}

// dropStage is a stage of this pipeline.
func dropStage(name string) bus.StageSpec {
	spec := bus.StageSpec{Name: name, State: currentScenario().pipeline.Stages[0].State, Handle: forwardLevel(levelInput)}
	if name == "m" {
		spec.Handle = deriveSlowly
	}
	return spec
}

// deriveSlowly takes a pause for some deliveries, and, with state, checks the count of dropped deliveries.
func deriveSlowly(t *bus.Task, d *bus.Delivery) error {
	faultpoint.Hit("stage-begin")
	next, _ := t.State.(uint64)
	if next += d.Dropped; next != d.Seq && currentScenario().mayFail {
		err := fmt.Errorf("sequence %d arrived with %d dropped, instead of %d", d.Seq, d.Dropped, next)
		fmt.Printf("broken %q\n", err)
		return err
	}
	t.State = next + 1
	tag, err := checkDelivery(d, levelInput)
	if err != nil {
		return err
	}
	if d.Seq%2 == 0 {
		select {
		case <-time.After(dropPause):
		case <-t.Context().Done():
		}
	}
	if _, err := checkDelivery(d, levelInput); err != nil {
		return err
	}
	if err := emit(t, payload(tag, levelM, d.Seq), d.Seq%3 == 0); err != nil {
		return err
	}
	faultpoint.Hit("stage-emitted")
	return nil
}

// dropTrip sends one request through this pipeline. The request may have fewer results than inputs,
// but has the last one.
func dropTrip(ctx context.Context, s submitter, tag uint32, i int) error {
	inputs := 1 + 7*i%maxDirectInputs
	r, err := s.Stream(ctx)
	if err != nil {
		return fmt.Errorf("start request %#x: %w", tag, err)
	}
	sent := make(chan error, 1)
	go func() { sent <- sendInputs(ctx, r, tag, inputs) }()
	err = receiveSome(ctx, r, tag, uint64(inputs))
	r.Close()
	if sendErr := <-sent; err == nil && sendErr != nil {
		err = fmt.Errorf("send inputs: %w", sendErr)
	}
	if err != nil {
		return fmt.Errorf("request %d (%#x, %d inputs), %v: %w", r.ID(), tag, inputs, r.Outcome(), err)
	}
	return nil
}

func receiveSome(ctx context.Context, r *bus.Request, tag uint32, inputs uint64) error {
	var next uint64
	for {
		d, err := r.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF) && next == inputs:
			return nil
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: it completed with %d results instead of %d", errBroken, next, inputs)
		case err != nil:
			return fmt.Errorf("after %d of %d results: %w", next, inputs, err)
		}
		var seq uint64
		if b := d.Bytes(); len(b) >= headerBytes {
			seq = uint64(binary.LittleEndian.Uint16(b[8:])) & (1<<seqBits - 1)
		}
		got, err := verify(d.Bytes(), levelM, seq)
		if err == nil && (got != tag || seq < next) {
			err = fmt.Errorf("a result of request %#x, sequence %d, where at least %d is next", got, seq, next)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", errBroken, err)
		}
		next = seq + 1
		if err := d.Finish(nil); err != nil {
			return err
		}
	}
}

// TestChaosDrops kills processes at both ends of an edge that drops.
func TestChaosDrops(t *testing.T) {
	for _, name := range []string{"drops", "drops, replayed"} {
		t.Run(name, func(t *testing.T) {
			dropped := testKills(t, scenarios[name](), *wantDirect/2, *wantDirect/200).Edges[1].Dropped
			t.Logf("%d deliveries were dropped", dropped)
			if dropped == 0 {
				t.Error("nothing was dropped")
			}
		})
	}
}
