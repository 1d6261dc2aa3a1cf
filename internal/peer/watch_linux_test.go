package peer

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/process"
)

// ways are the ways to watch a process.
var ways = []struct {
	name string
	opts watchOptions
}{
	{name: "pidfd of the socket"},
	{name: "pidfd by number", opts: watchOptions{withoutPeerPIDFD: true}},
	{name: "without poller", opts: watchOptions{withoutPoller: true}},
}

// child starts a process that connects, and returns this end of the connection.
func child(t *testing.T) (*exec.Cmd, *Conn) {
	t.Helper()
	l := listenAt(t, socketPath(t))
	cmd := start(t, "dial", l.Path())
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if pid, _, _ := conn.Credentials(); pid != cmd.Process.Pid {
		t.Fatalf("process %d has connected, want %d", pid, cmd.Process.Pid)
	}
	return cmd, conn
}

func watchChild(t *testing.T, conn *Conn, opts watchOptions) *process.Process {
	t.Helper()
	p, err := watch(conn, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestProcessDies(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			cmd, conn := child(t)
			p := watchChild(t, conn, way.opts)
			if p.PID() != cmd.Process.Pid || p.Exited() || isClosed(p.Done()) {
				t.Errorf("process %d: Exited %v, Done %v; want %d alive", p.PID(), p.Exited(), isClosed(p.Done()), cmd.Process.Pid)
			}
			conn.Close() // the watch outlives the connection
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			if !p.Exited() {
				t.Error("Done is closed, and Exited reports false")
			}
			_ = cmd.Wait() // it was killed
			if p.Stopped() {
				t.Error("a dead process is Stopped")
			}
		})
	}
}

// TestAtExit: a function is called once when the process dies, at once if it is dead, and not after
// stop.
func TestAtExit(t *testing.T) {
	cmd, conn := child(t)
	p := watchChild(t, conn, watchOptions{})
	called, lived, died := make(chan string, 9), make(chan bool, 9), make(chan bool, 9)
	p.OnExit(func() { called <- "before" })
	p.OnExit(func() { called <- "stopped" })()
	p.OnExitWithin(0, func(dead bool) { lived <- dead })
	p.OnExitWithin(time.Hour, func(dead bool) { died <- dead })
	if <-lived {
		t.Error("a live process counts as dead")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := <-called; got != "before" {
		t.Errorf("called is what was %s", got)
	}
	if !<-died {
		t.Error("a dead process counts as alive")
	}
	p.OnExit(func() { called <- "after" })()
	if got := <-called; got != "after" {
		t.Errorf("called is what was %s", got)
	}
	p.OnExitWithin(0, func(dead bool) { lived <- dead })
	if !<-lived || len(called)+len(lived)+len(died) > 0 {
		t.Error("a stopped function was called, or a function twice")
	}
	_ = cmd.Wait() // it was killed
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestProcessClose closes watches over a process that lives.
func TestProcessClose(t *testing.T) {
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) {
			_, conn := child(t)
			checkNoLeak(t, func() {
				p := watchChild(t, conn, way.opts)
				if err := errors.Join(p.Close(), p.Close()); err != nil {
					t.Errorf("Close: %v", err)
				}
				if isClosed(p.Done()) || p.Exited() {
					t.Error("a live process counts as dead")
				}
			})
		})
	}
}

func TestProcessStops(t *testing.T) {
	cmd, conn := child(t)
	p := watchChild(t, conn, watchOptions{})
	if p.Stopped() {
		t.Error("Stopped before the signal")
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, cmd, unix.WSTOPPED)
	if !p.Stopped() {
		t.Error("not Stopped after the signal")
	}
	if p.Exited() {
		t.Error("Stopped is taken for Exited")
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	waitFor(t, cmd, unix.WCONTINUED)
	if p.Stopped() {
		t.Error("Stopped after it was continued")
	}
}

// TestReusedPIDIsNotStopped: the id of a dead process belongs to a stopped process.
func TestReusedPIDIsNotStopped(t *testing.T) {
	dead, _ := child(t)
	fd, err := unix.PidfdOpen(dead.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = dead.Wait() // it was killed
	other, _ := child(t)
	if err := other.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	waitFor(t, other, unix.WSTOPPED)
	p, err := process.Adopt(fd, other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Stopped() {
		t.Error("a dead process is Stopped because a stopped process has its id")
	}
}

// waitFor waits until a child has changed its state.
func waitFor(t *testing.T, cmd *exec.Cmd, state int) {
	t.Helper()
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, state, nil)
		if err == nil {
			return
		}
		if err != unix.EINTR {
			t.Fatal(err)
		}
	}
}

func TestWatchRefuses(t *testing.T) {
	byNumber := watchOptions{withoutPeerPIDFD: true}
	t.Run("another pid namespace", func(t *testing.T) {
		a, _ := pair(t)
		a.pid = 0
		if _, err := Watch(a); !errors.Is(err, errNamespace) {
			t.Errorf("Watch: %v, want errNamespace", err)
		}
	})
	t.Run("the number of a later process", func(t *testing.T) {
		_, conn := child(t)
		conn.since = time.Nanosecond
		checkNoLeak(t, func() {
			if _, err := watch(conn, byNumber); !errors.Is(err, ErrGone) {
				t.Errorf("watch: %v, want ErrGone", err)
			}
		})
	})
	t.Run("dead and gone", func(t *testing.T) {
		cmd, conn := child(t)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		checkNoLeak(t, func() {
			if _, err := watch(conn, byNumber); !errors.Is(err, ErrGone) {
				t.Errorf("watch by number: %v, want ErrGone", err)
			}
			// The kernel may still know the process of the socket, and then
			// says that it is dead.
			p, err := Watch(conn)
			if err == nil {
				<-p.Done()
				p.Close()
			} else if !errors.Is(err, ErrGone) {
				t.Errorf("Watch: %v, want ErrGone or a process that is dead", err)
			}
		})
	})
}
