package node_test

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// helloOf is the first message of this process, with a certain version.
func helloOf(version uint16) *wire.Hello {
	return &wire.Hello{VersionMin: version, VersionMax: version, PID: uint32(os.Getpid())}
}

// wantRefused requires that the host has refused the client and hung up.
func (c *thinClient) wantRefused(code wire.Code, text string) {
	c.t.Helper()
	bye, err := wire.Append(nil, &wire.Bye{}, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	_ = c.conn.Send(bye, nil)                    // has a host that does not refuse hang up
	m := c.await(wire.KindRefuse).(*wire.Refuse) //nolint:forcetypeassert // it is of that kind
	if m.Code != code || !strings.Contains(m.Text, text) {
		c.t.Errorf("refused with %v: %s; want %v and %q", m.Code, m.Text, code, text)
	}
	if _, _, _, err := c.in.Next(); err != io.EOF {
		c.t.Errorf("after the refusal came %v, want the end", err)
	}
}

// TestHelloIsChecked: a process that asks for another bus or version, or gives another PID, is
// refused with the reason. Other processes are served.
func TestHelloIsChecked(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), bus.Options{Name: "b"})
	changed := func(change func(*wire.Hello)) *wire.Hello {
		m := helloOf(wire.Version)
		change(m)
		return m
	}
	for name, tt := range map[string]struct {
		first wire.Message
		code  wire.Code
		text  string
	}{
		"another bus":      {changed(func(m *wire.Hello) { m.Bus = "c" }), wire.CodeBus, `the bus "b" lives here, not "c"`},
		"an older version": {helloOf(wire.Version - 1), wire.CodeVersion, "the peer speaks versions"},
		"a later version":  {helloOf(wire.Version + 1), wire.CodeVersion, "the peer speaks versions"},
		"another process":  {changed(func(m *wire.Hello) { m.PID++ }), wire.CodeDenied, "calls itself"},
		"no process":       {changed(func(m *wire.Hello) { m.PID = 0 }), wire.CodeDenied, "calls itself 0"},
		"no hello":         {&wire.Serve{Token: 1, Stage: "m"}, wire.CodeProtocol, "the first message must be hello: it is serve"},
	} {
		t.Run(name, func(t *testing.T) {
			c := connectThin(t, h.path)
			c.send(tt.first)
			c.wantRefused(tt.code, tt.text)
		})
	}
	t.Run("another protocol", func(t *testing.T) {
		c := connectThin(t, h.path)
		packet, err := wire.Append(nil, helloOf(wire.Version), 0)
		if err != nil {
			t.Fatal(err)
		}
		packet[wire.HeaderSize]++ // of the magic
		if err := c.conn.Send(packet, nil); err != nil {
			t.Fatal(err)
		}
		c.wantRefused(wire.CodeProtocol, "magic")
	})
	t.Run("hello twice", func(t *testing.T) {
		c := dialThin(t, h.path)
		c.await(wire.KindWelcome)
		c.send(helloOf(wire.Version))
		c.wantRefused(wire.CodeProtocol, "hello is not for the host")
	})
	h.join(t, node.JoinOptions{Bus: "b"})
}

// TestDescriptorsBeforeHello: a descriptor that comes before Hello is closed by the host.
func TestDescriptorsBeforeHello(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), storeOptions)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	c := connectThin(t, h.path)
	c.sendFD(&wire.Offer{Segment: 1, Bytes: 1}, int(w.Fd()))
	c.wantRefused(wire.CodeProtocol, "the first message must be hello: it is offer")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(testbus.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the pipe is still open for writing: %v", err)
	}
}
