package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// asProcess1 runs the command as process 1 of a container. The kernel makes process 1 the parent of each process whose
// parent has died, and only process 1 can reap those. asProcess1 starts the command in a second process, so that its
// reaping takes no child from the command's own waits; it forwards signals, reaps, and returns the exit code. Done is
// false in every process but process 1.
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
				// A terminal signals both processes, so the forwarded signal is an echo: see echoWait. If the second process
				// has ended, process 1 is about to.
				_ = syscall.Kill(pid, number)
			}
		}
	}()
	return reap(pid), true
}

// reap waits for all children until the child pid has ended, and returns that child's exit code.
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
