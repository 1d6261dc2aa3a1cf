package host

import "syscall"

// dieWithHost makes the kernel kill the main process when the host dies.
func dieWithHost() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
