package chaos

import (
	"errors"
	"io"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestCompletedBeforeHostIsGone has a host that reports a request complete, and
// dies before it has returned the inputs. The caller must get all results, and
// the end of the request.
func TestCompletedBeforeHostIsGone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := peer.Listen(path, peer.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	const results = 3
	host := make(chan error, 1)
	go func() { host <- hostOnce(ln, results) }()

	n, err := node.Join(t.Context(), "caller", node.JoinOptions{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = n.Close(t.Context()) }()
	r, err := n.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Input(t.Context()).EmitBytes(payload(1, levelInput, 0), bus.Last()); err != nil {
		t.Fatal(err)
	}
	if err := <-host; err != nil {
		t.Fatal(err)
	}
	for i := range results + 1 {
		d, err := r.Recv(t.Context())
		if i == results {
			if !errors.Is(err, io.EOF) {
				t.Fatalf("after the last result: %v, %v", r.Outcome(), err)
			}
			break
		}
		if err != nil {
			t.Fatalf("instead of result %d: %v, %v", i, r.Outcome(), err)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
}

// hostOnce is a host that answers one request, and dies.
func hostOnce(ln *peer.Listener, results int) error {
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	edge := []wire.Edge{{Name: "->a", Peer: "a", Window: 4, WindowBytes: 1 << 20}}
	say := func(m wire.Message) error { return conn.Send(encode(m), nil) }
	for in := peer.NewReceiver(conn); ; {
		h, body, fds, err := in.Next()
		if err != nil {
			return err
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		m, err := wire.Parse(h, body)
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *wire.Hello:
			err = say(&wire.Welcome{Version: wire.Version, Node: 1, Epoch: 1, Bus: "once", Inputs: edge, Results: []wire.Edge{{Name: "a->", Peer: "a", Window: 4, WindowBytes: 1 << 20}}})
		case *wire.Submit:
			if m.Flags&wire.SubmitTell != 0 {
				err = say(&wire.Submitted{Source: m.Source})
			}
		case *wire.Put:
			for seq := range uint64(results) {
				err = errors.Join(err, say(&wire.Deliver{
					Source: m.Source, Delivery: uint32(seq) + 1, Flags: wire.FlagInline, Codec: 1, Seq: seq, Size: 1, Payload: []byte{byte(seq)},
				}))
			}
			return errors.Join(err, say(&wire.Over{Source: m.Source, Outcome: wire.OutcomeCompleted}))
		}
		if err != nil {
			return err
		}
	}
}
