//go:build unix

package child

import (
	"os"

	"golang.org/x/sys/unix"
)

// terminate asks the group of the process to end, and the process itself if it
// left its group.
func terminate(p *os.Process) { signalGroup(p, unix.SIGTERM) }

// quit asks for stacks first, where the program writes them.
func quit(p *os.Process) { signalGroup(p, unix.SIGQUIT) }

// kill does so without asking.
func kill(p *os.Process) { signalGroup(p, unix.SIGKILL) }

// signalGroup has no error to return: what cannot be signalled has ended, or
// runs as another user, whom the program itself chose.
func signalGroup(p *os.Process, signal unix.Signal) {
	_ = unix.Kill(-p.Pid, signal)
	if group, err := unix.Getpgid(p.Pid); err == nil && group != p.Pid {
		_ = p.Signal(signal)
	}
}

// groupOf returns the group of a process, 0 if there is no such process. Pid 0
// is the host itself, whose group is none of a child's.
func groupOf(pid int) int {
	group, err := unix.Getpgid(pid)
	if err != nil {
		return 0
	}
	return group
}
