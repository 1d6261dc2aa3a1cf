package peer

import (
	"errors"
	"fmt"
	"time"

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
		// In this mode, and only in it, os.NewFile hands the descriptor to the
		// runtime's poller. When it cannot be set, watch falls back to poll(2).
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
		return -1, ErrGone // the second is what kernels before 6.15 say of one that was waited for
	case errors.Is(err, unix.ENOPROTOOPT):
		return openByNumber(conn)
	default:
		return -1, fmt.Errorf("ask the socket for its process: %w", err)
	}
}

// openByNumber opens the process that has the peer's number now. That is the
// peer if it was there before the connection, and if it is the same before and
// after: the number of a process is free for another only when it is dead.
func openByNumber(conn *Conn) (int, error) {
	before, err := process.ReadStat(conn.pid)
	if err != nil {
		return -1, gone(err)
	}
	fd, err := unix.PidfdOpen(conn.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process: %w", err)
	}
	after, err := process.ReadStat(conn.pid)
	if err == nil && !isPeer(before, after, conn.since) {
		err = fmt.Errorf("%w: its number belongs to a process that was started later", ErrGone)
	}
	if err != nil {
		unix.Close(fd)
		return -1, gone(err)
	}
	return fd, nil
}

// isPeer tells by what was read before and after a number was opened whether the process
// that has it is the one that connected.
func isPeer(before, after process.Stat, since time.Duration) bool {
	return after.Started == before.Started && before.Started <= since
}

// gone says of a process that is dead that the peer is.
func gone(err error) error {
	if errors.Is(err, process.ErrGone) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}
