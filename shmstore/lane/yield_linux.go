package lane

import "golang.org/x/sys/unix"

// yield lets another process run. It goes through the normal system call: a
// raw one in a loop cannot be preempted and stops the garbage collector for as
// long. It is not runtime.Gosched, which wakes another thread to find work and
// often moves this goroutine there, for more than a park costs.
func yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
