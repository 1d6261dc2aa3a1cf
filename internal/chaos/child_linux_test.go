package chaos

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// role is a kind of process that takes part in the bus.
type role struct {
	name   string
	stage  string // empty: it submits
	python string // the script; empty: it is this test binary
	env    []string
}

// child is one process, from its start until it is dead and its output is read.
type child struct {
	role  role
	fault string // the fault point at which it kills itself; empty: none

	cmd    *exec.Cmd
	stdin  io.Closer
	pidfd  int
	stderr tail
	lines  func(line string)

	killedAt atomic.Int64 // when the test sent SIGKILL, unix nanoseconds; 0: it did not
	excused  atomic.Bool  // it may end with an error
	diedAt   time.Time    // when the pidfd said so; set before dead is closed
	dead     chan struct{}
	done     chan struct{} // closed when its output has been read
	err      error         // how it ended; set before done is closed
}

// start starts a process with the host's socket in its environment. lines is
// called with each line of its standard output.
func start(r role, socket, fault string, lines func(string)) (*child, error) {
	c := &child{role: r, fault: fault, pidfd: -1, lines: lines, dead: make(chan struct{}), done: make(chan struct{})}
	c.cmd = exec.Command(os.Args[0])
	if r.python != "" {
		c.cmd = exec.Command("python3", filepath.Join("testdata", r.python))
	}
	c.cmd.Env = append(os.Environ(), node.EnvSocket+"="+socket, node.EnvStage+"="+r.stage, faultpoint.Variable+"="+fault,
		"PYTHONPATH="+filepath.Join("..", "..", "clients", "python", "src"), "PYTHONDONTWRITEBYTECODE=1")
	c.cmd.Env = append(c.cmd.Env, r.env...)
	c.cmd.Stderr = &c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{PidFD: &c.pidfd}
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go c.attend(stdout)
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// attend reads the output of the process, and waits until it has ended.
func (c *child) attend(stdout io.Reader) {
	defer close(c.done)
	read := make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			c.lines(s.Text())
		}
	}()
	awaitDeath(c.pidfd)
	c.diedAt = time.Now()
	close(c.dead)
	<-read
	c.err = c.cmd.Wait()
	_ = unix.Close(c.pidfd)
}

// awaitDeath returns when a pidfd is readable.
func awaitDeath(pidfd int) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n == 1 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}

// kill sends SIGKILL.
func (c *child) kill() {
	c.killedAt.CompareAndSwap(0, time.Now().UnixNano())
	_ = c.cmd.Process.Kill() // fails if it is dead
}

// signal sends a signal that does not kill.
func (c *child) signal(s syscall.Signal) { _ = c.cmd.Process.Signal(s) }

// killed reports whether the process ended by SIGKILL. It is called after done.
func (c *child) killed() bool {
	var exit *exec.ExitError
	return errors.As(c.err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
}

// tail keeps the last tailBytes of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 64 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if n := len(t.buf) - tailBytes; n > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[n:])]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
