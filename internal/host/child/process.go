package child

import (
	"errors"
	"os"
	"os/exec"
	"sync"
)

// A process is one run of a child's program, its group and its output. Tests
// of the supervision put a model in its place.
type process interface {
	pid() int
	// owns reports whether the pid is of the process or, while that one lives,
	// of its group.
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

	mu     sync.Mutex // keeps signals away from a pid that is reaped
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

// start starts the process with two pipes, and what waits for them and for it.
// Two, because the lines of one stream would be cut by those of the other.
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
			closeAll(true) // a nil file refuses to be closed, and that is all
			return err
		}
	}
	p.cmd.Stdout, p.cmd.Stderr = pipes[0].w, pipes[1].w // no Stdin is the null device
	if err := f.start(p.cmd); err != nil {
		closeAll(true)
		return err
	}
	closeAll(false) // the end of the output is seen when the children's ends are closed
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
		stopWaiting(pipe) // a descendant that left the group may hold it open, and all that the process wrote is there
	}
	readers.Wait()
	for _, pipe := range pipes {
		_ = pipe.Close()
	}
	close(p.finished)
}

// reap waits for the death of the process and takes its group along. The
// group is killed before the process is reaped where that is possible: until
// then nobody else can have its number.
func (p *osProcess) reap() {
	zombie := awaitExit(p.cmd.Process.Pid)
	if !zombie {
		_ = p.cmd.Wait() // the state says it all
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
		return -1, Unknown // somebody else reaped it
	}
	return p.state.ExitCode(), p.state.String()
}

func (p *osProcess) lines(n int) []string { return p.out.lastLines.last(n) }
