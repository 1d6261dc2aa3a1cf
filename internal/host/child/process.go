package child

import (
	"errors"
	"os"
	"os/exec"
	"sync"
)

// A process is one run of a child's program, with its group and its output. Tests of the supervision
// use a model instead.
type process interface {
	pid() int
	// owns reports whether the pid is that of the process or, while the process lives, of a member of
	// its group.
	owns(pid int) bool
	terminate()
	quit()
	kill()
	// done is closed when the process is dead and reaped, the rest of its group
	// killed, and its output read.
	done() <-chan struct{}
	// exit returns the exit status and its text, once done.
	exit() (code int, text string)
	// lines returns the last n lines of output.
	lines(n int) []string
}

type osProcess struct {
	cmd      *exec.Cmd
	out      *output
	finished chan struct{}
	state    *os.ProcessState // written before finished is closed

	mu     sync.Mutex // keeps signals from a pid that was reaped
	reaped bool
}

// launch starts a process. The error is a [*StartError] or [ErrClosed].
func (m *Manager) launch(s *Spec) (process, error) {
	cmd, err := command(s)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = attributes()
	p := &osProcess{cmd: cmd, out: newOutput(s.Name, m.opts.LogLines, m.console), finished: make(chan struct{})}
	if err := p.start(m.forker); err != nil {
		if errors.Is(err, ErrClosed) {
			return nil, err
		}
		return nil, &StartError{Name: s.Name, Program: s.Args[0], Path: cmd.Path, Dir: s.Dir, Err: err}
	}
	return p, nil
}

// start starts the process with two pipes, and the goroutines that wait for it and them. In one pipe,
// the lines of the two streams would cut each other.
func (p *osProcess) start(f *forker) error {
	var pipes [2]struct{ r, w *os.File }
	closeAll := func(readers bool) {
		for _, pipe := range pipes {
			_ = pipe.w.Close()
			if readers {
				_ = pipe.r.Close()
			}
		}
	}
	for i := range pipes {
		var err error
		if pipes[i].r, pipes[i].w, err = os.Pipe(); err != nil {
			closeAll(true) // closing a nil file only returns an error
			return err
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = pipes[0].w, pipes[1].w // without Stdin the process gets the null device
	if err := f.start(p.cmd); err != nil {
		closeAll(true)
		return err
	}
	closeAll(false) // the output ends when the children have closed their ends
	var readers sync.WaitGroup
	for _, pipe := range pipes {
		readers.Go(func() { p.out.read(pipe.r) })
	}
	go p.wait(&readers, pipes[0].r, pipes[1].r)
	return nil
}

func (p *osProcess) wait(readers *sync.WaitGroup, pipes ...*os.File) {
	p.reap()
	for _, pipe := range pipes {
		stopWaiting(pipe) // all that the process wrote is in the pipe, and a descendant that left the group may hold it open
	}
	readers.Wait()
	for _, pipe := range pipes {
		_ = pipe.Close()
	}
	close(p.finished)
}

// reap waits for the death of the process and kills the rest of its group. If possible the group is
// killed before the process is reaped: until then its number cannot be assigned again.
func (p *osProcess) reap() {
	zombie := awaitExit(p.cmd.Process.Pid)
	if !zombie {
		_ = p.cmd.Wait() // the state has the result
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	kill(p.cmd.Process)
	if zombie {
		_ = p.cmd.Wait()
	}
	p.reaped = true
	p.state = p.cmd.ProcessState
}

func (p *osProcess) pid() int { return p.cmd.Process.Pid }

func (p *osProcess) owns(pid int) bool {
	if pid == p.pid() {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.reaped && groupOf(pid) == p.pid()
}

func (p *osProcess) terminate() { p.signal(terminate) }

func (p *osProcess) quit() { p.signal(quit) }

func (p *osProcess) kill() { p.signal(kill) }

func (p *osProcess) signal(send func(*os.Process)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		send(p.cmd.Process)
	}
}

func (p *osProcess) done() <-chan struct{} { return p.finished }

func (p *osProcess) exit() (code int, text string) {
	if p.state == nil {
		return -1, Unknown // another waiter reaped it
	}
	return p.state.ExitCode(), p.state.String()
}

func (p *osProcess) lines(n int) []string { return p.out.lastLines.last(n) }
