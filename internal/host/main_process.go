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

// An Interrupt is the cause of a context that ended by a signal to the whole terminal: the main process
// got the signal, too.
type Interrupt struct{}

// Error implements error.
func (Interrupt) Error() string { return "interrupted" }

// mainProcess is the program that uses the bus. A nil mainProcess stands for none, and never ends.
//
// It differs from a child: it has the terminal, and its output is copied byte by byte.
type mainProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of Wait; valid when ended is closed

	mu           sync.Mutex // keeps signals from a pid that was reaped
	reaped       bool
	endRequested bool // then its death by a signal is no failure
}

// startMain starts the main process, if there is one.
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

// mainCommand prepares the command of the main process, so that a missing program is found before any
// process starts; nil: there is none.
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

// run starts the process and waits for it, on one thread. The kernel kills the process when the thread
// that started it ends, so the thread must last as long as the host.
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

// interrupt ends the process, unless the terminal's signal has reached it.
func (m *mainProcess) interrupt(cause error) {
	if errors.As(cause, &Interrupt{}) {
		m.signal(nil)
		return
	}
	m.terminate()
}

func (m *mainProcess) terminate() { m.signal(syscall.SIGTERM) }

func (m *mainProcess) kill() { m.signal(os.Kill) }

// signal asks the process to end; nil: the signal was sent already. It returns no error: a dead process
// needs no signal, and a process that does not obey is killed.
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

// stop terminates the process if it has not ended when the context does, and returns when it is dead.
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

// outputWait is how long output is read after the main process has ended, while other processes hold
// its pipes.
const outputWait = time.Second

// killAfter is the time between the last SIGTERM to the main process and SIGKILL.
const killAfter = time.Second

// Exit codes of processes that ended as requested.
const (
	codeInterrupted = 128 + int(syscall.SIGINT)
	codeKilled      = 128 + int(syscall.SIGKILL)
	codeTerminated  = 128 + int(syscall.SIGTERM)
)

// result returns the error of the main process; nil: it succeeded, or there was none. The cause is why
// the run ends. After an interrupt the process may be dead before the host notices the signal.
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
