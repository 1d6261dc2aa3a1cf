//go:build !unix

package child

import (
	"os"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return nil }

func awaitExit(int) bool { return false }

// terminate kills: there is no way to ask.
func terminate(p *os.Process) { kill(p) }

// quit leaves it to the kill that follows.
func quit(*os.Process) {}

// kill has no error to return: a process that cannot be killed has ended.
func kill(p *os.Process) { _ = p.Kill() }

func groupOf(int) int { return 0 }
