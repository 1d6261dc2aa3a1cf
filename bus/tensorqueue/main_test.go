package tensorqueue_test

import (
	"os"
	"testing"
)

// roles are what this test binary does when it is started as another process,
// by name.
var roles = map[string]func(){}

// Variables of a child's environment: what it is, and where the queue is.
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
