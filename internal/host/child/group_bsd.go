//go:build unix && !linux

package child

import "syscall"

// attributes make the process lead a group of its own.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// awaitExit cannot wait without reaping here. The group of a process that is
// reaped keeps its number while it has members; between the reaping and the
// signal to a group that has none, another could get it. The systems hand
// numbers out in a circle, so that it would have to come around within
// microseconds.
func awaitExit(int) bool { return false }
