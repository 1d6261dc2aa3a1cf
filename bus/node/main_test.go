package node_test

import (
	"os"
	"testing"
)

// roles are the functions that this test binary runs when it is started as another process, by
// name.
var roles = map[string]func(){}

// roleEnv names the role of a child.
const roleEnv = "OMNIBUS_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		roles[role]()
		return
	}
	os.Exit(m.Run())
}
