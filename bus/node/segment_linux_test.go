package node_test

import (
	"os"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// thinClient is a client that sends and receives single messages of the protocol.
type thinClient struct {
	t    *testing.T
	conn *peer.Conn
	in   *peer.Receiver
	seen []wire.Kind // kinds of the received messages
}

func dialThin(t *testing.T, path string) *thinClient {
	t.Helper()
	c := connectThin(t, path)
	c.send(helloOf(wire.Version))
	return c
}

// ownSource is the number of a client's own request.
func ownSource(n uint32) uint32 { return wire.OwnSource | n }

// connectThin connects without sending Hello.
func connectThin(t *testing.T, path string) *thinClient {
	t.Helper()
	conn, err := peer.Dial(t.Context(), path, peer.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := &thinClient{t: t, conn: conn, in: peer.NewReceiver(conn)}
	t.Cleanup(func() {
		c.in.Close()
		_ = conn.Close()
	})
	return c
}

func (c *thinClient) send(m wire.Message) {
	c.t.Helper()
	packet, err := wire.Append(nil, m, 0)
	if err == nil {
		err = c.conn.Send(packet, nil)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *thinClient) sendFD(m wire.Message, fd int) {
	c.t.Helper()
	packet, err := wire.Append(nil, m, 1)
	if err == nil {
		err = c.conn.Send(packet, []int{fd})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// await reads messages up to the next one of a kind.
func (c *thinClient) await(kind wire.Kind) wire.Message {
	c.t.Helper()
	m, fd := c.awaitFD(kind)
	if fd >= 0 {
		_ = os.NewFile(uintptr(fd), "received").Close()
	}
	return m
}

// awaitFD is await, and also returns the descriptor of the message; -1: it has none.
func (c *thinClient) awaitFD(kind wire.Kind) (m wire.Message, fd int) {
	c.t.Helper()
	for {
		h, body, fds, err := c.in.Next()
		if err != nil {
			c.t.Fatalf("no %v: %v", kind, err)
		}
		c.seen = append(c.seen, h.Kind)
		if h.Kind == kind && len(fds) == 1 {
			fd, fds = fds[0], nil
		} else {
			fd = -1
		}
		for _, fd := range fds {
			_ = os.NewFile(uintptr(fd), "received").Close()
		}
		m, err := wire.Parse(h, body)
		switch {
		case err != nil:
			c.t.Fatal(err)
		case h.Kind == kind:
			return m, fd
		case h.Kind == wire.KindFailed || h.Kind == wire.KindRefuse:
			c.t.Fatalf("no %v, but %+v", kind, m)
		}
	}
}

func (c *thinClient) count(kind wire.Kind) (n int) {
	for _, k := range c.seen {
		if k == kind {
			n++
		}
	}
	return n
}

// TestArenaIsMappedOnce: a client gets the segment of the store's arena once, even if it holds no
// payload there in between.
func TestArenaIsMappedOnce(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	c := dialThin(t, h.path)
	c.send(&wire.Serve{Token: 1, Stage: "m"})
	c.await(wire.KindServing)
	r := testbus.StreamOf(t, h.bus)
	const payloads = 3
	for range payloads {
		if err := r.Input(t.Context()).EmitBytes(make([]byte, 40_000)); err != nil {
			t.Fatal(err)
		}
		d := c.await(wire.KindDeliver).(*wire.Deliver)
		c.send(&wire.Finish{Delivery: d.Delivery})
		c.send(&wire.Call{Token: 2, Method: "status"})
		c.await(wire.KindReply) // the host has handled the finish
	}
	if n := c.count(wire.KindSegment); n != 1 {
		t.Errorf("%d segments came for %d payloads in the one arena", n, payloads)
	}
	if n := c.count(wire.KindForget); n != 0 {
		t.Errorf("the arena was to be forgotten %d times", n)
	}
	r.Abort(nil)
	c.send(&wire.Bye{})
}
