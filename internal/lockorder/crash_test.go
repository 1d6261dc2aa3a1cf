//go:build lockcheck

package lockorder

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const crashes = "LOCKORDER_TEST_CRASHES"

// TestFaultEndsTheProcess: recover does not hide a fault.
func TestFaultEndsTheProcess(t *testing.T) {
	if os.Getenv(crashes) != "" {
		defer func() { _ = recover() }()
		var one, other Mutex[Outputs]
		one.Lock()
		other.Lock()
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), crashes+"=1")
	said, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "panic: lockorder: Outputs (rank") {
		t.Errorf("the process with a fault said %s, and ended with %v", said, err)
	}
}
