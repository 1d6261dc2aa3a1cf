package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// An Interrupt is the cause of a context that ended because of a signal that
// the whole terminal was sent: the main process has it, too.
type Interrupt struct{}

// Error implements error.
func (Interrupt) Error() string { return "interrupted" }

// mainProcess is the program that uses the bus. A nil one is none, and never
// ends.
//
// It is not a child like the others: it has the terminal, and its output is the
// run's, byte by byte.
type mainProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait; behind over

	mu           sync.Mutex // keeps signals away from a pid that is reaped
	reaped       bool
	endRequested bool // to end: dying of it is no failure
}

// startMain starts the main process, if there is to be one.
func (h *running) startMain() error {
	if h.command == nil {
		return nil
	}
	m := &mainProcess{cmd: h.command, ended: make(chan struct{})}
	started := make(chan error)
	go m.run(started)
	if err := <-started; err != nil {
		return fmt.Errorf("start the main process: %w", err)
	}
	h.mu.Lock()
	h.main = m
	h.mu.Unlock()
	return nil
}

// mainCommand prepares the main process, before anything is started that it
// would find missing; nil: there is none.
func (h *running) mainCommand() (*exec.Cmd, error) {
	args, dir := h.opts.Main, ""
	if len(args) == 0 {
		if args = h.pipeline.Bus.Main; len(args) == 0 {
			return nil, nil
		}
		var err error
		if args, dir, err = h.resolve(args, ""); err != nil {
			return nil, err
		}
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return nil, fmt.Errorf("the main process: %w: install it, set PATH, or give its full path", err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(cmd.Environ(), h.environment(nil)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = h.opts.Stdin, h.opts.Stdout, h.opts.Stderr
	cmd.SysProcAttr = dieWithHost()
	cmd.WaitDelay = outputWait
	return cmd, nil
}

// run starts the process and waits for it, on one thread: the kernel kills it
// when the thread that started it ends, and that must not be before the host
// does.
func (m *mainProcess) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := m.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	m.err = m.cmd.Wait()
	m.mu.Lock()
	m.reaped = true
	m.mu.Unlock()
	close(m.ended)
}

// done is closed when the process has ended.
func (m *mainProcess) done() <-chan struct{} {
	if m == nil {
		return nil
	}
	return m.ended
}

// interrupt passes on why the run ends, unless the process knows.
func (m *mainProcess) interrupt(cause error) {
	if errors.As(cause, &Interrupt{}) {
		m.signal(nil)
		return
	}
	m.terminate()
}

func (m *mainProcess) terminate() { m.signal(syscall.SIGTERM) }

func (m *mainProcess) kill() { m.signal(os.Kill) }

// signal asks the process to end; a nil signal was sent already. It has no
// error: a process that is gone needs none, and one that does not obey is
// killed.
func (m *mainProcess) signal(sig os.Signal) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reaped {
		return
	}
	m.endRequested = true
	if sig != nil {
		_ = m.cmd.Process.Signal(sig)
	}
}

// stop ends the process if it has not ended by itself when the context does,
// and returns when it is gone.
func (m *mainProcess) stop(ctx context.Context) {
	if m == nil {
		return
	}
	select {
	case <-m.ended:
		return
	case <-ctx.Done():
		m.terminate()
	}
	select {
	case <-m.ended:
	case <-time.After(killAfter):
		m.kill()
		<-m.ended
	}
}

// outputWait is how long output is read after the main process has ended, when
// others hold its pipes and there are pipes.
const outputWait = time.Second

// killAfter is what the main process has between the last SIGTERM and SIGKILL.
const killAfter = time.Second

// The exit codes of processes that ended as they were asked to.
const (
	codeInterrupted = 128 + int(syscall.SIGINT)
	codeKilled      = 128 + int(syscall.SIGKILL)
	codeTerminated  = 128 + int(syscall.SIGTERM)
)

// result is how it ended; nil: well, or there was none. The cause is why the run ends, if
// somebody ended it: of an interrupt the process may be dead before the host knows of it.
func (m *mainProcess) result(cause error) error {
	if m == nil || m.err == nil {
		return nil
	}
	var exit *exec.ExitError
	if !errors.As(m.err, &exit) {
		return fmt.Errorf("the main process: %w", m.err)
	}
	code := exit.ExitCode()
	if code < 0 {
		code = signalCode(exit.ProcessState)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	asked := m.endRequested || errors.As(cause, &Interrupt{})
	if asked && (code == codeInterrupted || code == codeTerminated || code == codeKilled) {
		return nil
	}
	return &MainError{Program: m.cmd.Args[0], Code: code, Status: exit.ProcessState.String()}
}
