package connectortest

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"
)

// Child is a transport in a child process.
type Child struct {
	*Relay
	cmd     *exec.Cmd
	stdin   io.Closer
	stopped bool
}

// Spawn starts the test's own program once more, with env added to the environment. TestMain of the
// child calls [Serve]. The child ends with the test; a failed exit is an error of the test, unless
// the child is doomed: meant to die at a fault point.
func Spawn(t testing.TB, doomed bool, env ...string) *Child {
	t.Helper()
	c := &Child{cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(append(os.Environ(), env...), "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	c.cmd.Stderr = os.Stderr
	stdin, inErr := c.cmd.StdinPipe()
	stdout, outErr := c.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, c.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	c.stdin, c.Relay = stdin, NewRelay(stdout, stdin)
	t.Cleanup(func() {
		if err := c.Stop(); err != nil && !doomed {
			t.Errorf("the child: %v", err)
		}
	})
	return c
}

// Stop ends the child and waits for it. Later calls do nothing.
func (c *Child) Stop() error {
	if c.stopped {
		return nil
	}
	c.stopped = true
	_ = c.stdin.Close()
	return c.cmd.Wait() //nolint:wrapcheck // the caller knows the child
}

// Kill kills the child, as a crash would.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill()
	_ = c.Stop()
}

// PID returns the child's process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }
