package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	for role, spec := range map[string]func(name string, n *node.Node) bus.StageSpec{
		"serve-batch": mortalBatch, "serve-actor": mortalActor, "serve-end": mortalEnd,
	} {
		roles[role] = func() {
			n, err := node.Join(context.Background(), "child", node.JoinOptions{})
			if err == nil {
				err = n.Serve(context.Background(), spec(os.Getenv(node.EnvStage), n))
			}
			fmt.Fprintln(os.Stderr, "child:", err)
		}
	}
}

// die ends this process, once the host has what was emitted before.
func die(n *node.Node) {
	_, _ = n.Call(context.Background(), "stats", nil) // answered behind it
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until it works
}

// mortalBatch is a stage that handles two deliveries at once. It emits each
// once, and then each twice; with "emit-kill" among them, its process dies in
// between the first time.
func mortalBatch(name string, n *node.Node) bus.StageSpec {
	emit := func(batch []*bus.Delivery, times string) (kill bool, err error) {
		for _, d := range batch {
			in, err := bus.Result[string](d)
			if err != nil {
				return false, err
			}
			kill = kill || strings.HasPrefix(in, "emit-kill") && d.Attempt == 0
			if err := d.Task().Emit(in + " " + times); err != nil {
				return false, err
			}
		}
		return kill, nil
	}
	return bus.StageSpec{
		Name: name, BatchSize: 2, BatchWait: time.Hour,
		Batch: func(batch []*bus.Delivery) error {
			kill, err := emit(batch, "once")
			if err != nil {
				return err
			}
			if kill {
				die(n)
			}
			_, err = emit(batch, "twice")
			return err
		},
	}
}

// mortalActor does the same in an actor, with one delivery after the other.
func mortalActor(name string, n *node.Node) bus.StageSpec {
	return bus.StageSpec{Name: name, Props: actor.PropsFromFunc(func(c actor.Context) {
		d, ok := c.Message().(*bus.Delivery)
		if !ok {
			return
		}
		if d.Bare() {
			_ = d.Finish(nil)
			return
		}
		in, err := bus.Result[string](d)
		err = errors.Join(err, d.Task().Emit(in+" once"))
		if strings.HasPrefix(in, "emit-kill") && d.Attempt == 0 {
			die(n)
		}
		_ = d.Finish(errors.Join(err, d.Task().Emit(in+" twice")))
	})}
}

// mortalEnd is an actor that emits for two deliveries when it has both, without
// saying for which; and at the end, where its process dies first if it is told
// so.
func mortalEnd(name string, n *node.Node) bus.StageSpec {
	var first *bus.Delivery
	return bus.StageSpec{Name: name, Props: actor.PropsFromFunc(func(c actor.Context) {
		d, ok := c.Message().(*bus.Delivery)
		switch {
		case !ok:
		case d.Bare() && os.Getenv(dieEnv) != "":
			die(n)
		case d.Bare():
			_ = d.Finish(d.Task().Emit("end"))
		case first == nil:
			first = d
		default:
			err := errors.Join(d.Task().Emit("one"), d.Task().Emit("two"))
			_, _ = first.Finish(nil), d.Finish(err)
		}
	})}
}

// dieEnv has mortalEnd die.
const dieEnv = "OMNIBUS_TEST_DIE"

// What a process had emitted for a batch before it was killed is not emitted
// again: for deliveries of one request.
func TestKilledBatchOfOneRequest(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.childAs(t, "serve-batch", "m")
	r := submitAll(t, h.bus, "a", "emit-kill", "b", "c", "d")
	h.childAs(t, "serve-batch", "m")
	testbus.MustReceive(t, r, outputs("a", "emit-kill", "b", "c", "d"))
}

// ... and of several.
func TestKilledBatchOfManyRequests(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.childAs(t, "serve-batch", "m")
	r, s := submitAll(t, h.bus, "emit-kill"), submitAll(t, h.bus, "a")
	h.childAs(t, "serve-batch", "m")
	testbus.MustReceive(t, r, outputs("emit-kill"))
	testbus.MustReceive(t, s, outputs("a"))
}

// ... nor what it had emitted from an actor.
func TestKilledActor(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.childAs(t, "serve-actor", "m")
	r := submitAll(t, h.bus, "a", "emit-kill", "b")
	h.childAs(t, "serve-actor", "m")
	testbus.MustReceive(t, r, outputs("a", "emit-kill", "b"))
}

// What is emitted at the end is not taken for what was emitted before, when
// another process is asked for it.
func TestKilledInEndHandler(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	t.Setenv(dieEnv, "yes")
	h.childAs(t, "serve-end", "m")
	testbus.Await(t, func() bool { return h.server.Serving("m") == 1 })
	r := submitAll(t, h.bus, "a", "b")
	t.Setenv(dieEnv, "")
	testbus.Await(t, func() bool { return h.server.Serving("m") == 0 })
	h.childAs(t, "serve-end", "m")
	testbus.MustReceive(t, r, []string{"one", "two", "end"})
}

// An input whose outputs wait for a place in the window is not finished: when
// the process is killed, they come from another.
func TestKilledWithQueuedOutput(t *testing.T) {
	p := testbus.Linear(bus.StageSpec{Name: "m", State: bus.StateNone, Remote: &bus.Remote{}})
	p.Edges = append(p.Edges, bus.Edge{From: "m", Window: 1})
	h := listen(t, p, bus.Options{Store: shmstore.Options{ArenaBytes: 8 << 20}})
	h.childAs(t, "serve-batch", "m")
	r, s := submitAll(t, h.bus, "a"), submitAll(t, h.bus, "b")
	testbus.Await(t, func() bool { return emittedBy(h.bus, "m") == 2 })
	u, v := submitAll(t, h.bus, "emit-kill"), submitAll(t, h.bus, "c")
	h.childAs(t, "serve-batch", "m")
	testbus.Await(t, func() bool { return emittedBy(h.bus, "m") == 4 })
	for r, in := range map[*bus.Request]string{r: "a", s: "b", u: "emit-kill", v: "c"} {
		testbus.MustReceive(t, r, outputs(in))
	}
}

// emittedBy is how many results of a stage have gone out.
func emittedBy(b *bus.Bus, stage string) int64 {
	for _, e := range b.Stats().Edges {
		if e.From == stage {
			return e.Deliveries
		}
	}
	return 0
}

// A node's batch handler gets one delivery of each request at a time where the
// serveAll counts what is emitted for each, and else all that there is.
func TestNodeBatchRounds(t *testing.T) {
	for state, want := range map[bus.State][]int{bus.StateNone: {2, 2, 1, 1, 1, 1}, bus.StateRequest: {4, 4}} {
		t.Run(state.String(), func(t *testing.T) {
			h := mortalHost(t, bus.StageSpec{State: state})
			sizes := make(chan int, 8)
			h.serve(t, bus.StageSpec{Name: "m", BatchSize: 4, BatchWait: time.Hour, Batch: func(batch []*bus.Delivery) error {
				sizes <- len(batch)
				for _, d := range batch {
					if err := d.Task().Forward(d); err != nil {
						return err
					}
				}
				return nil
			}})
			r, s := submitAll(t, h.bus, "a", "b"), submitAll(t, h.bus, "c", "d")
			testbus.MustReceive(t, r, []string{large("a"), large("b")})
			testbus.MustReceive(t, s, []string{large("c"), large("d")})
			testbus.MustReceive(t, submitAll(t, h.bus, "e", "f", "g", "h"), []string{large("e"), large("f"), large("g"), large("h")})
			var got []int
			for len(sizes) > 0 {
				got = append(got, <-sizes)
			}
			if !slices.Equal(got, want) {
				t.Errorf("batches of %v, want %v", got, want)
			}
		})
	}
}

// After a panic in one round of a batch, the others follow.
func TestNodeBatchRoundPanics(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.serve(t, bus.StageSpec{Name: "m", State: bus.StateNone, BatchSize: 4, BatchWait: time.Hour, Batch: func(batch []*bus.Delivery) error {
		for _, d := range batch {
			if err := d.Task().Forward(d); err != nil {
				return err
			}
			if d.Seq == 1 && d.Attempt == 0 {
				panic("in the second round")
			}
		}
		return nil
	}})
	testbus.MustReceive(t, submitAll(t, h.bus, "a", "b", "c", "d"), []string{large("a"), large("b"), large("c"), large("d")})
}
