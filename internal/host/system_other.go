//go:build !linux

package host

import "syscall"

func dieWithHost() *syscall.SysProcAttr { return nil }
