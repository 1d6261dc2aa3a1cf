package peer

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/process"
)

// watchOptions choose the ways that Watch does not take by itself, for tests.
type watchOptions struct {
	withoutPeerPIDFD bool // as before Linux 6.5
	withoutPoller    bool // as if the runtime could not wait for a pidfd
}

// Watch watches the process that conn.Credentials names. It returns
// an error when that cannot be seen from here, and [ErrGone] when it is
// dead and no process has its number. The watch does not depend on the connection
// once it has begun. The caller closes it.
//
// The kernel hands out the process of a connection since Linux 6.5. Before that
// Watch opens the process by its number, and makes sure that the one with that
// number is older than the connection.
func Watch(conn *Conn) (*process.Process, error) {
	p, err := watch(conn, watchOptions{})
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", conn.pid, err)
	}
	return p, nil
}
