package node_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestRejoin: a node with Rejoin waits for its first host, and serves its stage at each later host,
// after a drain and after a close.
func TestRejoin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus.sock")
	lines := make(lineWriter, 64)
	served := make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		n, err := node.Join(ctx, t.Name(), node.JoinOptions{Socket: path, Rejoin: true, Logger: slog.New(slog.NewTextHandler(lines, nil))})
		if err != nil {
			served <- err
			return
		}
		served <- errors.Join(n.Serve(ctx, bus.Stage("a", testbus.Upper)), n.Close(context.Background()))
	}()
	for !strings.Contains(<-lines, "no host yet") { // it waits
	}
	for _, end := range []string{"drain", "close", "drain"} {
		b := testbus.Open(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
		s, err := host.Listen(b, path, host.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		r, err := b.Submit(t.Context(), "x")
		if err != nil {
			t.Fatal(err)
		}
		testbus.MustReceive(t, r, []string{"X"})
		if end == "drain" {
			s.Drain()
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop() // where there is no host
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestJoinWithoutAHost: the error of a node that has waited for its first host names the socket. A
// node that a host refuses does not wait.
func TestJoinWithoutAHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus.sock")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := node.Join(ctx, t.Name(), node.JoinOptions{Socket: path, Rejoin: true})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path) {
		t.Errorf("join: %v, want that the time is up, and where no host was", err)
	}
	h := listen(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{})
	if _, err := node.Join(t.Context(), t.Name(), node.JoinOptions{Socket: h.path, Bus: "another", Rejoin: true}); err == nil || !strings.Contains(err.Error(), "another") {
		t.Errorf("join another bus: %v", err)
	}
}

// TestStartedProcessDoesNotRejoin: in a process that a host has started, Serve returns when that
// host drains, even with Rejoin: otherwise the host would wait for the process.
func TestStartedProcessDoesNotRejoin(t *testing.T) {
	t.Setenv(node.EnvReplica, "0")
	h := listen(t, testbus.Remotes(testbus.Linear(bus.StageSpec{Name: "a"})), bus.Options{})
	n := h.join(t, node.JoinOptions{Rejoin: true})
	h.server.Drain()
	if err := n.Serve(t.Context(), bus.Stage("a", testbus.Upper)); err != nil { // which returns
		t.Error(err)
	}
}
