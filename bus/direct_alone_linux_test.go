package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	opts := bus.Options{Store: shmstore.Options{ArenaBytes: 64 << 20, Memory: shmstore.Shared}}
	roles["host a and b"] = hosting(wide(remotes(linear(forwarding("a"), forwarding("b")))), opts)
	roles["host a, b and c"] = hosting(remotes(linear(forwarding("a"), forwarding("b"), forwarding("c"))), opts)
}

// hostAlone starts a host of the stages a and b that can be killed.
func hostAlone(t *testing.T) (*hosted, *exec.Cmd) { return hostAloneAs(t, "host a and b") }

func hostAloneAs(t *testing.T, role string) (*hosted, *exec.Cmd) {
	t.Helper()
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	host := h.hostAs(t, role)
	return h, host
}

// hostAs starts a host at the socket, in a process of its own.
func (h *hosted) hostAs(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	host := h.childAs(t, role, "")
	bus.Await(t, func() bool { // it listens
		n, err := bus.Join(t.Context(), "first", bus.JoinOptions{Socket: h.path})
		return err == nil && n.Close(t.Context()) == nil
	})
	return host
}

// hosting is a role: it hosts a pipeline at the socket that the environment names.
func hosting(p bus.Pipeline, opts bus.Options) func() {
	return func() {
		b, err := bus.Open(context.Background(), p, opts)
		if err == nil {
			_, err = b.Listen(os.Getenv(bus.EnvSocket), bus.ListenOptions{})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		select {} // until it is killed
	}
}

// streamAlone serves both stages where they finish without the host, and
// submits a request of one input.
func (h *hosted) streamAlone(t *testing.T, a, b bus.StageSpec) *bus.Request {
	t.Helper()
	for _, spec := range []bus.StageSpec{a, b} {
		n := h.join(t, bus.JoinOptions{FinishWithoutHost: true})
		go func() { _ = n.Serve(context.Background(), spec) }() // ends with the host
	}
	n := h.join(t, bus.JoinOptions{})
	r := streamOf(t, n)
	t.Cleanup(r.Close)
	if err := r.Input(t.Context()).EmitBytes(block(0, 8), bus.Last()); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestDataOutlivesTheHost: processes that finish without the host handle all
// that is on its way between them.
func TestDataOutlivesTheHost(t *testing.T) {
	h, host := hostAlone(t)
	// One by one first, so that the rest goes past the host.
	const outputs = slowly + 50
	emitted, ended := make(chan error, 1), make(chan struct{})
	next := make(chan struct{})
	b, kept := keeping("b")
	b.End = func(*bus.Task) error { close(ended); return nil }
	a := bus.StageSpec{Name: "a", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		for i := range outputs {
			if err := t.EmitBytes(block(i, directBlock)); err != nil {
				emitted <- err
				return err
			}
			if i < slowly {
				<-next
			}
		}
		emitted <- nil
		return nil
	}}
	r := h.streamAlone(t, a, b)
	for range slowly {
		mustFinish(t, <-kept)
		next <- struct{}{}
	}
	var all []*bus.Kept
	if err := <-emitted; err != nil {
		t.Fatal(err)
	}
	kill(t, host)
	if err := r.Wait(t.Context()); !errors.Is(err, bus.ErrHostGone) {
		t.Fatal(err)
	}
	for len(all) < outputs-slowly {
		all = append(all, <-kept)
	}
	for i, k := range all {
		if !bytes.Equal(k.Delivery().Bytes(), block(slowly+i, directBlock)) {
			t.Errorf("delivery %d is not what was sent", slowly+i)
		}
		mustFinish(t, k)
	}
	<-ended
}

// TestGapWithoutTheHost: what the host had not relayed when it died never comes.
// A task that waits for it ends, with all that did come given back.
func TestGapWithoutTheHost(t *testing.T) {
	for range 10 { // in some of them the host has something
		t.Run("", testGapWithoutTheHost)
	}
}

func testGapWithoutTheHost(t *testing.T) {
	h, host := hostAlone(t)
	begun, over := make(chan struct{}), make(chan struct{})
	var task context.Context // of b, once that has begun
	b := bus.StageSpec{
		Name: "b",
		Handle: func(t *bus.Task, d *bus.Delivery) error {
			if d.Seq == 0 {
				task = t.Context()
				close(begun)
			}
			return nil
		},
		End: func(*bus.Task) error { close(over); return nil },
	}
	a := bus.StageSpec{Name: "a", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		for i := range slowly {
			if err := t.EmitBytes(block(i, directBlock)); err != nil {
				return err
			}
			if i == slowly/10 {
				<-begun
				_ = host.Process.Kill()
			}
		}
		return nil
	}}
	h.streamAlone(t, a, b)
	<-begun
	select {
	case <-over: // all has come
	case <-task.Done():
	}
}

// TestFailureWithoutTheHost: a task that fails in mid-stream when the host is gone
// fails those that wait for the rest, also where the processes that serve the
// stages wait for each other, so that none would ever leave.
func TestFailureWithoutTheHost(t *testing.T) {
	for name, serve := range map[string][][]string{
		"one process": {{"a", "b", "c"}},
		"a circle":    {{"a", "c"}, {"b"}},
	} {
		t.Run(name, func(t *testing.T) { testFailureWithoutTheHost(t, serve) })
	}
}

func testFailureWithoutTheHost(t *testing.T, serve [][]string) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	h, host := hostAloneAs(t, "host a, b and c")
	handled, streaming, fail := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var whole atomic.Int32
	end := func(*bus.Task) error { whole.Add(1); return nil }
	stages := map[string]bus.StageSpec{
		"a": {Name: "a", Handle: func(t *bus.Task, _ *bus.Delivery) error {
			for i := range slowly { // one by one, so that the last go past the host
				if err := t.EmitBytes(block(i, 8)); err != nil {
					return err
				}
				<-handled
			}
			close(streaming)
			<-fail
			return errors.New("enough")
		}},
		"b": {Name: "b", Handle: forwarding("b").Handle, End: end},
		"c": {Name: "c", Handle: func(*bus.Task, *bus.Delivery) error { handled <- struct{}{}; return nil }, End: end},
	}
	served := make(chan error, len(serve))
	var nodes []*bus.Node
	for _, names := range serve {
		n := h.join(t, bus.JoinOptions{FinishWithoutHost: true})
		nodes = append(nodes, n)
		var specs []bus.StageSpec
		for _, name := range names {
			specs = append(specs, stages[name])
		}
		go func() { served <- n.Serve(ctx, specs...) }()
	}
	r, err := h.join(t, bus.JoinOptions{}).Submit(t.Context(), "begin")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	<-streaming
	kill(t, host)
	bus.Await(t, func() bool { // all go on without it
		return !slices.ContainsFunc(nodes, func(n *bus.Node) bool { return n.Epoch() != 0 })
	})
	close(fail)
	for range nodes {
		if err := <-served; ctx.Err() != nil || !errors.Is(err, bus.ErrHostGone) {
			t.Fatalf("Serve: %v (%v)", err, ctx.Err())
		}
	}
	if n := whole.Load(); n != 0 {
		t.Errorf("%d tasks took a part of their stream for all of it", n)
	}
}
