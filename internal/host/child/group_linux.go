package child

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes make the process lead a group of its own, and die with the thread that starts it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit waits until the process has ended, without reaping it: a zombie keeps its number, and that
// of its group, from being assigned again. It reports false on failure.
func awaitExit(pid int) bool {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
}
