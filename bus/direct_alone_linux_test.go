package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	roles["host a and b"] = func() {
		p := wide(remotes(linear(forwarding("a"), forwarding("b"))))
		b, err := bus.Open(context.Background(), p, bus.Options{Store: shmstore.Options{ArenaBytes: 64 << 20, Memory: shmstore.Shared}})
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

// hostAlone starts a host of the stages a and b that can be killed.
func hostAlone(t *testing.T) (*hosted, *exec.Cmd) {
	t.Helper()
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	host := h.childAs(t, "host a and b", "")
	await(func() bool { // it listens
		n, err := bus.Join(t.Context(), "first", bus.JoinOptions{Socket: h.path})
		return err == nil && n.Close(t.Context()) == nil
	})
	return h, host
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
	r, err := n.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
