package host

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestCloseWithASilentPeer: a closing host does not wait for a peer that has connected and sends
// nothing.
func TestCloseWithASilentPeer(t *testing.T) {
	b, err := bus.Open(t.Context(), bus.Pipeline{Stages: []bus.StageSpec{{Name: "m", Remote: &bus.Remote{}}}},
		bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bus.sock")
	server, err := Listen(b, path, ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("unixpacket", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	later, err := node.Join(t.Context(), "node", node.JoinOptions{Socket: path}) // the host accepted the silent peer before this node
	if err != nil {
		t.Fatal(err)
	}
	if err := later.Close(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), helloTimeout-2*time.Second)
	defer cancel()
	if err := server.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := b.Close(testbus.Soon(t)); err != nil {
		t.Error(err)
	}
}
