package process

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// Process is a process that is being watched: the one that lived when the watch
// began, never a later one with the same process id.
type Process struct {
	pid  int
	file *os.File        // the pidfd
	raw  syscall.RawConn // of file

	exited  chan struct{} // closed when the process is dead
	closing chan struct{} // closed when the watch ends
	ended   chan struct{} // closed when the goroutine has ended

	mu     lockorder.Mutex[lockorder.Process]
	dead   bool
	atExit map[*func()]struct{}

	closeOnce sync.Once
	closeErr  error
}

// Adopt watches the process of a pidfd from a trusted source; pid is its process
// id. Adopt owns the descriptor, even if it fails. The caller closes the watch.
func Adopt(pidfd, pid int) (*Process, error) {
	p, err := adopt(pidfd, pid)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	return p, nil
}

// FD is the pidfd. It belongs to the watch, and is valid until Close; then it is -1.
func (p *Process) FD() (fd int) {
	if p.raw.Control(func(own uintptr) { fd = int(own) }) != nil {
		return -1
	}
	return fd
}

// PID returns the process id.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process is dead: all its threads have ended, and its
// memory is given back. It stays open if the watch is closed before.
func (p *Process) Done() <-chan struct{} { return p.exited }

// Exited reports whether the process is dead. It asks the kernel, and so can be
// ahead of Done.
func (p *Process) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return p.hasExited()
	}
}

// OnExit calls f, on a goroutine of its own, when the process is dead; at once if it is dead
// already. After stop, f is not called any more. Nor is f called if the watch is closed before the
// process is dead.
func (p *Process) OnExit(f func()) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead {
		go f()
		return func() {}
	}
	if p.atExit == nil {
		p.atExit = make(map[*func()]struct{})
	}
	p.atExit[&f] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.atExit, &f)
	}
}

// OnExitWithin calls f once, on a goroutine of its own: with true when the process is dead, or with
// false when the process still lives after wait, or the watch was closed before it died.
func (p *Process) OnExitWithin(wait time.Duration, f func(died bool)) {
	var once sync.Once
	stop := p.OnExit(func() { once.Do(func() { f(true) }) })
	time.AfterFunc(wait, func() {
		stop()
		once.Do(func() { f(p.Exited()) })
	})
}

// notifyExit closes exited and starts the functions of OnExit.
func (p *Process) notifyExit() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
	close(p.exited)
	for f := range p.atExit {
		go (*f)()
	}
	p.atExit = nil
}

// Stopped reports whether the process has been stopped by a signal or a
// debugger, which explains why it does not answer. It is false if that is
// unknown.
func (p *Process) Stopped() bool { return p.isStopped() }

// ProcessorTime is how long all threads of the process have used processors, to a hundredth of a second; known is
// false if that cannot be read.
func (p *Process) ProcessorTime() (used time.Duration, known bool) { return p.processorTime() }

// Close ends the watch, and returns when its goroutine has ended. The process
// lives on. Close may be called twice.
func (p *Process) Close() error {
	p.closeOnce.Do(func() {
		close(p.closing)
		p.closeErr = p.file.Close()
		<-p.ended
	})
	return p.closeErr
}
