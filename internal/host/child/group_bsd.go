//go:build unix && !linux

package child

import "syscall"

// attributes make the process lead a group of its own.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// awaitExit cannot wait without reaping on these systems. The group of a reaped process keeps its
// number while it has members. A group without members could lose its number between the reaping and
// the signal. These systems assign numbers cyclically, so a number would have to be assigned again
// within microseconds.
func awaitExit(int) bool { return false }
