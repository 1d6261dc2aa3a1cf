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

// die kills this process after the host has received the earlier emissions.
func die(n *node.Node) {
	_, _ = n.Call(context.Background(), "stats", nil) // the answer comes after the emissions
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until it works
}

// mortalBatch is a stage that handles two deliveries at a time. It emits each once, and then each
// twice. If one of them is "emit-kill", its process dies in between at the first attempt.
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

// mortalActor is mortalBatch as an actor, which handles one delivery at a time.
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

// mortalEnd is an actor that emits twice when it has two deliveries, without naming either as the
// cause, and once at the end. With dieEnv its process dies at the end before that emission.
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

// TestKilledBatchOfOneRequest: after a process was killed in a batch of one request, its emissions
// for the batch are not repeated.
func TestKilledBatchOfOneRequest(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.childAs(t, "serve-batch", "m")
	r := submitAll(t, h.bus, "a", "emit-kill", "b", "c", "d")
	h.childAs(t, "serve-batch", "m")
	testbus.MustReceive(t, r, outputs("a", "emit-kill", "b", "c", "d"))
}

// TestKilledBatchOfManyRequests: after a process was killed in a batch of several requests, its
// emissions for the batch are not repeated.
func TestKilledBatchOfManyRequests(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.childAs(t, "serve-batch", "m")
	r, s := submitAll(t, h.bus, "emit-kill"), submitAll(t, h.bus, "a")
	h.childAs(t, "serve-batch", "m")
	testbus.MustReceive(t, r, outputs("emit-kill"))
	testbus.MustReceive(t, s, outputs("a"))
}

// TestKilledActor: after a process was killed, the emissions of its actor are not repeated.
func TestKilledActor(t *testing.T) {
	h := mortalHost(t, bus.StageSpec{State: bus.StateNone})
	h.childAs(t, "serve-actor", "m")
	r := submitAll(t, h.bus, "a", "emit-kill", "b")
	h.childAs(t, "serve-actor", "m")
	testbus.MustReceive(t, r, outputs("a", "emit-kill", "b"))
}

// TestKilledInEndHandler: emissions of the end, repeated by another process, are not dropped as
// repeats of earlier emissions.
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

// TestKilledWithQueuedOutput: an input whose outputs wait for a slot in the window is not finished:
// after the process was killed, another process emits the outputs.
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

// emittedBy counts the results of a stage that were sent.
func emittedBy(b *bus.Bus, stage string) int64 {
	for _, e := range b.Stats().Edges {
		if e.From == stage {
			return e.Deliveries
		}
	}
	return 0
}

// TestNodeBatchRounds: where the host counts emissions by delivery, a batch handler of a node gets
// at most one delivery of each request at a time; otherwise it gets all waiting deliveries.
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

// TestNodeBatchRoundPanics: after a panic in one round of a batch, the other rounds follow.
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
