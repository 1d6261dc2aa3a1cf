package peer

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/process"
)

// watchOptions select the fallbacks of Watch, for tests.
type watchOptions struct {
	withoutPeerPIDFD bool // as before Linux 6.5
	withoutPoller    bool // as if the runtime could not wait for a pidfd
}

// Watch watches the process that conn.Credentials names. It returns an error if
// that process is not visible in the pid namespace, and [ErrGone] if it is dead and
// no process has its id. The watch does not depend on the connection once it has
// begun. The caller closes it.
//
// Since Linux 6.5 the kernel returns a pidfd of a connection's process. Before that,
// Watch opens the process by its id, and makes sure that the process is older than
// the connection.
func Watch(conn *Conn) (*process.Process, error) {
	p, err := watch(conn, watchOptions{})
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", conn.pid, err)
	}
	return p, nil
}
