package child

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes make the process lead a group of its own, and die when the
// thread that starts it ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until the process has ended, and leaves it to be reaped: a
// zombie keeps its number, and with it the number of its group, from being
// given to others. It reports false if it cannot do that.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
