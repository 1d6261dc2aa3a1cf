package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// directBlock is the size of the payloads here: too large for messages. smallStore has space for
// few of them.
const (
	directBlock = 5000
	smallStore  = 128 << 10
)

// warmup is how many deliveries precede the tested ones. At most a window of them is in flight, so
// that the stream takes the direct path afterwards.
const warmup = 300

// lateForwardAt is the input with which the role "forward late" forwards the first input: the
// streams take the direct path long before.
const lateForwardAt = 500

func init() {
	serve := func(spec bus.StageSpec) func() {
		return func() {
			n, err := node.Join(context.Background(), "child", node.JoinOptions{})
			if err == nil {
				spec.Name = os.Getenv(node.EnvStage)
				err = n.Serve(context.Background(), spec)
			}
			fmt.Fprintln(os.Stderr, "child:", err)
		}
	}
	roles["forward"] = serve(forwarding(""))
	roles["forward late"] = serve(bus.StageSpec{Handle: func(t *bus.Task, d *bus.Delivery) error {
		if d.Seq == 0 {
			t.State = d.Keep()
			return nil
		}
		if err := t.Forward(d); err != nil || d.Seq != lateForwardAt {
			return err
		}
		first := t.State.(*bus.Kept)
		return errors.Join(t.Forward(first.Delivery()), first.Finish(nil))
	}})
	roles["hold"] = serve(bus.StageSpec{Handle: func(_ *bus.Task, d *bus.Delivery) error {
		if d.Seq >= warmup {
			d.Keep() // until it is killed
		}
		return nil
	}})
	roles["emit"] = serve(bus.StageSpec{Handle: func(t *bus.Task, d *bus.Delivery) error {
		for i := range int(binary.LittleEndian.Uint64(d.Bytes())) {
			if err := t.EmitBytes(block(i, directBlock)); err != nil {
				return err
			}
		}
		return nil
	}})
	roles["send blocks"] = func() {
		n, err := node.Join(context.Background(), "child", node.JoinOptions{})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		r, err := n.Stream(context.Background())
		for i := 0; err == nil; i++ {
			err = r.Input(context.Background()).EmitBytes(block(i, directBlock))
		}
		fmt.Fprintln(os.Stderr, err)
	}
}

// keeping is a stage that passes each delivery to the test, which finishes it.
func keeping(name string) (bus.StageSpec, <-chan *bus.Kept) {
	kept := make(chan *bus.Kept)
	return bus.StageSpec{Name: name, Handle: func(_ *bus.Task, d *bus.Delivery) error {
		kept <- d.Keep()
		return nil
	}}, kept
}

func mustFinish(t *testing.T, k *bus.Kept) {
	t.Helper()
	if err := k.Finish(nil); err != nil {
		t.Fatal(err)
	}
}

// kill kills a child and waits until it is dead.
func kill(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
}

// relayed reports whether a delivery that a process holds came through the host.
func (h *hosted) relayed(k *bus.Kept, edge string) bool {
	return slices.ContainsFunc(h.server.Holdings(), func(o host.Holding) bool {
		return !o.Direct && o.Edge == edge && o.Seq == k.Delivery().Seq && o.Request == k.Delivery().Task().Request()
	})
}

// wantDied requires that a request has failed because a certain process died.
func wantDied(t *testing.T, err error, stage string, cmd *exec.Cmd) {
	t.Helper()
	var at *bus.StageError
	if !errors.As(err, &at) || at.Stage != stage || !strings.Contains(err.Error(), fmt.Sprintf("process %d died", cmd.Process.Pid)) {
		t.Fatalf("the request ended with %v; process %d of stage %q was killed", err, cmd.Process.Pid, stage)
	}
}

// narrow gives the edges small windows.
func narrow(p bus.Pipeline) bus.Pipeline {
	p.Edges = []bus.Edge{{To: "f", Window: 4}, {From: "f", To: "x", Window: 4}, {From: "x", Window: 4}}
	return p
}

// wide gives an edge a window for all deliveries of a test.
func wide(p bus.Pipeline) bus.Pipeline {
	p.Edges = []bus.Edge{{From: "a", To: "b", Window: 64, WindowBytes: 1 << 20}}
	return p
}

// TestForwarderDies: a payload that a process has forwarded on a direct path stays unchanged while
// a third process reads it, even after the forwarder is dead.
func TestForwarderDies(t *testing.T) {
	x, kept := keeping("x")
	h := listen(t, narrow(testbus.Remotes(testbus.Linear(forwarding("f"), x))), bus.Options{})
	h.serve(t, x)
	f := h.childAs(t, "forward", "f")
	n := h.join(t, node.JoinOptions{Store: shmstore.Options{ArenaBytes: smallStore}})
	send := func(r *bus.Request, i int) *bus.Kept {
		t.Helper()
		if err := r.Input(t.Context()).EmitBytes(block(i, directBlock)); err != nil {
			t.Fatal(err)
		}
		return <-kept
	}
	r := testbus.StreamOf(t, n)
	for i := range warmup {
		mustFinish(t, send(r, i))
	}
	last := send(r, warmup)
	if h.relayed(last, "f->x") {
		t.Fatal("the host still relays")
	}
	kill(t, f)
	wantDied(t, r.Wait(t.Context()), "f", f)

	h.childAs(t, "forward", "f")
	again := testbus.StreamOf(t, n)
	for i := range 10 * smallStore / directBlock {
		mustFinish(t, send(again, 1000+i))
	}
	if want := block(warmup, directBlock); !bytes.Equal(last.Delivery().Bytes(), want) {
		t.Errorf("a payload in use was overwritten: it begins with %v", last.Delivery().Bytes()[:8])
	}
	mustFinish(t, last)
}

// TestForwarderAndProducerDie: a process has forwarded a payload of another process and a payload
// of the host; both processes die. When the reader has finished, the host gets its own payload
// back.
func TestForwarderAndProducerDie(t *testing.T) {
	x, kept := keeping("x")
	h := listen(t, narrow(testbus.Remotes(testbus.Linear(forwarding("f"), x))), bus.Options{})
	h.serve(t, x)
	f := h.childAs(t, "forward late", "f")
	caller := h.childAs(t, "send blocks", "")
	// next finishes deliveries until the late forwarder forwards a first input.
	next := func() *bus.Kept {
		for {
			k := <-kept
			if binary.LittleEndian.Uint64(k.Delivery().Bytes()) == 0 {
				return k
			}
			mustFinish(t, k)
		}
	}
	ofCaller := next()
	r := testbus.StreamOf(t, h.bus)
	go func() {
		for i := 0; r.Input(context.Background()).EmitBytes(block(i, directBlock)) == nil; i++ {
		}
	}()
	var ofHost *bus.Kept
	for ofHost == nil { // the caller keeps sending until its window is full
		if k := next(); k.Delivery().Task().Request() == r.ID() {
			ofHost = k
		}
	}
	if h.relayed(ofCaller, "f->x") || h.relayed(ofHost, "f->x") {
		t.Fatal("the host still relays")
	}
	go func() { // deliveries that are on their way
		for k := range kept {
			_ = k.Finish(nil)
		}
	}()
	kill(t, f)
	kill(t, caller)
	wantDied(t, r.Wait(t.Context()), "f", f)
	testbus.Await(t, func() bool { return len(h.server.Processes()) == 1 })
	for _, k := range []*bus.Kept{ofCaller, ofHost} {
		if !bytes.Equal(k.Delivery().Bytes(), block(0, directBlock)) {
			t.Error("a payload in use was overwritten")
		}
		mustFinish(t, k)
	}
	if err := h.bus.Drain(testbus.Soon(t)); err != nil { // closing the bus checks that nothing is held
		t.Error(err)
	}
}

// nodePermits is how many requests of a node can be alive at least.
const nodePermits = 4

// TestConsumerDies: direct deliveries that a dead process has not finished are lost with it. The
// request fails, and their memory returns to the sender.
func TestConsumerDies(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(forwarding("a"))), bus.Options{})
	a := h.childAs(t, "hold", "a")
	n := h.join(t, node.JoinOptions{MaxRequests: nodePermits})
	r := testbus.StreamOf(t, n)
	for i := range warmup + 3 { // the last are within the window
		if err := r.Input(t.Context()).EmitBytes(block(i, directBlock)); err != nil {
			t.Fatal(err)
		}
	}
	kill(t, a)
	wantDied(t, r.Wait(t.Context()), "a", a)
	r.Close()
	h.childAs(t, "forward", "a")
	for range nodePermits { // a permit is free when all payloads of its request are back
		testbus.Await(t, func() bool {
			r, err := n.Stream(t.Context())
			if err == nil {
				t.Cleanup(r.Close)
			}
			return err == nil
		})
	}
}

// directOf counts the streams of a process that take a direct path.
func directOf(h *hosted, pid int) int {
	for _, p := range h.server.Processes() {
		if p.PID == pid {
			return p.Direct
		}
	}
	return -1
}

// TestProducerDies: the direct deliveries of a dead process stay valid if its part of the request
// had ended. Otherwise the request fails.
func TestProducerDies(t *testing.T) {
	for _, over := range []bool{true, false} {
		t.Run(fmt.Sprint("over=", over), func(t *testing.T) {
			const outputs, least = 5 * warmup, 50
			b, kept := keeping("b")
			h := listen(t, wide(testbus.Remotes(testbus.Linear(forwarding("a"), b))), bus.Options{Store: shmstore.Options{ArenaBytes: 64 << 20}})
			h.serve(t, b)
			a := h.childAs(t, "emit", "a")
			r := testbus.StreamOf(t, h.bus)
			if err := r.Input(t.Context()).EmitBytes(block(outputs, 8)); err != nil {
				t.Fatal(err)
			}
			begin := warmup
			for range begin {
				mustFinish(t, <-kept)
			}
			all := []*bus.Kept{<-kept}
			for h.relayed(all[0], "a->b") || begin < outputs-least {
				mustFinish(t, all[0])
				all[0] = <-kept
				begin++
			}
			if over {
				for len(all) < outputs-begin {
					all = append(all, <-kept)
				}
				if err := r.CloseSend(t.Context()); err != nil {
					t.Fatal(err)
				}
				testbus.Await(t, func() bool { return directOf(h, a.Process.Pid) == 0 })
			}
			kill(t, a)
			testbus.Await(t, func() bool { return directOf(h, a.Process.Pid) < 0 })
			if !over {
				go func() {
					for k := range kept {
						_ = k.Finish(nil)
					}
				}()
				wantDied(t, r.Wait(t.Context()), "a", a)
			}
			for i, k := range all {
				if !bytes.Equal(k.Delivery().Bytes(), block(begin+i, directBlock)) {
					t.Errorf("delivery %d has other bytes than were sent", begin+i)
				}
				mustFinish(t, k)
			}
			if err := r.Wait(t.Context()); over && err != nil {
				t.Error(err)
			}
		})
	}
}
