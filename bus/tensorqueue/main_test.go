package tensorqueue_test

import (
	"os"
	"testing"
)

// roles are the functions of this test binary as a child process, by name.
var roles = map[string]func(){}

// Environment variables of a child: its role, and the queue's socket.
const (
	roleEnv   = "OMNIBUS_TEST_ROLE"
	socketEnv = "OMNIBUS_TEST_SOCKET"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		roles[role]()
		return
	}
	os.Exit(m.Run())
}
