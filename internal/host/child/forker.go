package child

import (
	"os/exec"
	"runtime"
)

// A forker starts processes, all from one thread of the operating system.
//
// Linux sends the signal of PR_SET_PDEATHSIG when the thread that forked ends, not when its process
// does. The runtime may end threads: a goroutine that returns while it is locked to its thread ends the
// thread, and any goroutine may have forked there before. A process started from such a thread would be
// killed at some moment without a visible reason. So one goroutine forks, stays locked to its thread,
// and returns only when the manager has no process left. It never unlocks: its thread ends with it.
type forker struct {
	requests chan forkRequest
	quit     chan struct{}
	done     chan struct{}
}

type forkRequest struct {
	cmd    *exec.Cmd
	result chan<- error
}

func newForker() *forker {
	f := &forker{
		requests: make(chan forkRequest),
		quit:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	go f.run()
	return f
}

func (f *forker) run() {
	defer close(f.done)
	runtime.LockOSThread()
	for {
		select {
		case r := <-f.requests:
			r.result <- r.cmd.Start()
		case <-f.quit:
			return
		}
	}
}

// start starts the process. On Linux the process dies with this program.
func (f *forker) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	select {
	case f.requests <- forkRequest{cmd, result}:
		return <-result
	case <-f.done:
		return ErrClosed
	}
}

// close ends the thread. The kernel then kills the processes that are still alive.
func (f *forker) close() {
	close(f.quit)
	<-f.done
}
