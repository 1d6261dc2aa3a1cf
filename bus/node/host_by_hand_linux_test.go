package node

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/bustest"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// handHost is a host that the test holds: what the node says to it, the test hears.
type handHost struct {
	t    *testing.T
	conn *peer.Conn
	out  *peer.Sender
	said chan wire.Message
}

// attachByHand makes a node of this process at a host that the test holds, and has it serve the
// stage "m".
func attachByHand(t *testing.T, handle func(*bus.Task, *bus.Delivery) error) (*handHost, *attached) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bus.sock")
	ln, err := peer.Listen(path, peer.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	h := &handHost{t: t, said: make(chan wire.Message, 1<<10)}
	met := make(chan error, 1)
	go func() { met <- h.meet(ln) }()
	a := new(attached)
	a.node = joinTo(t, path)
	if err := <-met; err != nil {
		t.Fatal(err)
	}
	if a.link, err = a.node.current(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = a.node.Serve(context.Background(), bus.StageSpec{Name: "m", State: bus.StateRequest, Handle: handle}) // ends with the node
	}()
	for {
		m, serves := h.hears().(*wire.Serve)
		if !serves {
			continue
		}
		window := wire.Edge{Window: 8, WindowBytes: 1 << 20}
		in, out := window, window
		in.Name, out.Name = "->m", "m->"
		h.say(&wire.Serving{Token: m.Token, MaxInflight: 1, State: wire.StateRequest, Inputs: []wire.Edge{in}, Outputs: []wire.Edge{out}})
		return h, a
	}
}

// meet lets the node in, and hears what it says from then on.
func (h *handHost) meet(ln *peer.Listener) error {
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	in := peer.NewReceiver(conn)
	if _, _, _, err := in.Next(); err != nil { // hello
		return err
	}
	if h.out, err = peer.NewSender(conn, peer.SenderOptions{}); err != nil {
		return err
	}
	h.conn = conn
	h.t.Cleanup(func() { _ = h.out.Close(); _ = conn.Close() })
	go func() {
		defer in.Close()
		_ = in.Serve(func(head wire.Header, body []byte, fds []int) error { // until the node has left
			process.CloseAll(fds)
			m, err := wire.Parse(head, bytes.Clone(body))
			if err == nil {
				h.said <- m
			}
			return err
		})
	}()
	return h.out.Queue(&wire.Welcome{Version: wire.Version, Node: 1, Epoch: 1, InlineBytes: 1 << 10, Bus: "by hand"})
}

func (h *handHost) say(ms ...wire.Message) {
	h.t.Helper()
	for _, m := range ms {
		if err := h.out.Queue(m); err != nil {
			h.t.Fatal(err)
		}
	}
}

// hears is the next that the node says.
func (h *handHost) hears() wire.Message {
	h.t.Helper()
	select {
	case m := <-h.said:
		return m
	case <-time.After(bustest.Patience):
		h.t.Fatal("the node says nothing")
		return nil
	}
}
