//go:build unix

package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminate sends SIGTERM to the group of the process, and to the process itself if it has left its
// group.
func terminate(p *os.Process) { signalGroup(p, unix.SIGTERM) }

// quit sends SIGQUIT, on which many programs write their stacks.
func quit(p *os.Process) { signalGroup(p, unix.SIGQUIT) }

// kill sends SIGKILL.
func kill(p *os.Process) { signalGroup(p, unix.SIGKILL) }

// signalGroup returns no error: a process that cannot be signalled has ended, or has changed its user.
func signalGroup(p *os.Process, signal unix.Signal) {
	_ = unix.Kill(-p.Pid, signal)
	if group, err := unix.Getpgid(p.Pid); err == nil && group != p.Pid {
		_ = p.Signal(signal)
	}
}

// groupOf returns the group of a process; 0: there is no such process. Pid 0 names the host itself,
// whose group is not that of a child.
func groupOf(pid int) int {
	group, err := unix.Getpgid(pid)
	if err != nil {
		return 0
	}
	return group
}
