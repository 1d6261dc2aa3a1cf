package peer

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/process"
)

func watch(conn *Conn, opts watchOptions) (*process.Process, error) {
	if conn.pid == 0 {
		return nil, fmt.Errorf("%w: neither side could see the other die; start both in one namespace", errNamespace)
	}
	fd, err := openPIDFD(conn, opts)
	if err != nil {
		return nil, err
	}
	if !opts.withoutPoller {
		// Only in this mode os.NewFile passes the descriptor to the runtime's
		// poller. If it cannot be set, the watch uses poll(2).
		_ = unix.SetNonblock(fd, true)
	}
	return process.Adopt(fd, conn.pid)
}

// openPIDFD returns a descriptor of the process at the other end.
func openPIDFD(conn *Conn, opts watchOptions) (int, error) {
	fd, err := -1, error(unix.ENOPROTOOPT)
	if !opts.withoutPeerPIDFD {
		controlErr := conn.raw.Control(func(socket uintptr) {
			fd, err = unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		})
		if controlErr != nil {
			return -1, controlErr
		}
	}
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return -1, ErrGone // kernels before 6.15 return EINVAL for a process that was waited for
	case errors.Is(err, unix.ENOPROTOOPT):
		fd, err := process.OpenByNumber(conn.pid, conn.since)
		return fd, asPeerGone(err)
	default:
		return -1, fmt.Errorf("ask the socket for its process: %w", err)
	}
}

// asPeerGone adds ErrGone to the error that the process is dead.
func asPeerGone(err error) error {
	if errors.Is(err, process.ErrGone) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
