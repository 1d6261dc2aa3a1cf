package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// asProcess1 is what the command does as process 1 of a container. The kernel makes that the parent of every process
// whose own parent has died, and it alone can reap those. It runs the command in another process, whose waits for its
// children it cannot disturb, passes signals on to it, reaps, and returns the exit code. Elsewhere, done is false.
func asProcess1() (code int, done bool) {
	if os.Getpid() != 1 {
		return 0, false
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, append(endsOfHosts(), syscall.SIGQUIT)...)
	attr := &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}}
	pid, err := syscall.ForkExec("/proc/self/exe", os.Args, attr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "omnibus: process 1 runs the command in a process of its own, which cannot be started: %v\n", err)
		return 1, true
	}
	go func() {
		for s := range signals {
			if number, ok := s.(syscall.Signal); ok {
				// A terminal sends it to both, which makes this one an echo: see echoWait. If the process is gone, so is this one.
				_ = syscall.Kill(pid, number)
			}
		}
	}()
	return reap(pid), true
}

// reap waits for all children until the one of that pid has ended, and returns its exit code.
func reap(pid int) int {
	for {
		var status syscall.WaitStatus
		switch dead, err := syscall.Wait4(-1, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			fmt.Fprintf(os.Stderr, "omnibus: wait for process %d: %v\n", pid, err)
			return 1
		case dead != pid:
		case status.Signaled():
			return exitSignal + int(status.Signal())
		default:
			return status.ExitStatus()
		}
	}
}
