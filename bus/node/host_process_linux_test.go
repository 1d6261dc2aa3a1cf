package node_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// hostAloneAs starts a host in its own process, so that it can be killed.
func hostAloneAs(t *testing.T, role string) (*hosted, *exec.Cmd) {
	t.Helper()
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	host := h.hostAs(t, role)
	return h, host
}

// hostAs starts a host at the socket, in its own process.
func (h *hosted) hostAs(t *testing.T, role string) *exec.Cmd {
	t.Helper()
	host := h.childAs(t, role, "")
	testbus.Await(t, func() bool { // it listens
		n, err := node.Join(t.Context(), "first", node.JoinOptions{Socket: h.path})
		return err == nil && n.Close(t.Context()) == nil
	})
	return host
}

// hosting is a role that hosts a pipeline at the socket of the environment.
func hosting(p bus.Pipeline, opts bus.Options) func() {
	return func() {
		b, err := bus.Open(context.Background(), p, opts)
		if err == nil {
			_, err = host.Listen(b, os.Getenv(node.EnvSocket), host.ListenOptions{})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		select {} // until it is killed
	}
}
