//go:build !unix

package child

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

func awaitExit(int) bool { return false }

// terminate kills the process: there is no signal to ask it.
func terminate(p *os.Process) { kill(p) }

// quit does nothing: a kill follows.
func quit(*os.Process) {}

// kill returns no error: a process that cannot be killed has ended.
func kill(p *os.Process) { _ = p.Kill() }

func groupOf(int) int { return 0 }
