package node_test

import (
	"os"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestLargeResultsOfPython: a result of 256 MiB of a Python stage reaches a Python caller, with the
// default settings of a bus.
func TestLargeResultsOfPython(t *testing.T) {
	const size = 256 << 20
	if s := headroom.System().Check(6 * size); s != nil {
		t.Skipf("the machine has not enough memory for payloads of 256 MiB: %d bytes of %s", s.AvailableBytes, s.Limit)
	}
	p := bus.Pipeline{Stages: []bus.StageSpec{{Name: "large", Remote: &bus.Remote{}}}}
	h := listen(t, p, bus.Options{Store: shmstore.Options{ArenaBytes: shmstore.Options{}.WithDefaults().ArenaBytes}})
	serve := pythontest.Command(t, "testdata/large.py", "serve")
	serve.Env = append(serve.Env, node.EnvSocket+"="+h.path, node.EnvStage+"=large")
	serve.Stderr = os.Stderr
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Kill()
		_ = serve.Wait()
	})
	call := pythontest.Command(t, "testdata/large.py", "call", "268435456", "256", "20000256")
	call.Env = append(call.Env, node.EnvSocket+"="+h.path)
	call.Stderr = os.Stderr
	out, err := call.Output()
	if want := strings.Repeat("True\n", 4); err != nil || string(out) != want {
		t.Errorf("got %q, want %q: %v", out, want, err)
	}
}
