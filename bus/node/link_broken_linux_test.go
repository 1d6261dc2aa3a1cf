package node_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// stopProcess stops a child process, and returns when its last thread has stopped: until then it
// answers.
func stopProcess(t *testing.T, p *os.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for {
		err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// TestJoinWhenHostIsStopped: Join at a stopped host ends with its context, and the error names the
// stopped host.
func TestJoinWhenHostIsStopped(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	host := h.hostAlone(t).Process
	stopProcess(t, host)
	want := fmt.Sprintf("the host, process %d, does not answer: it is stopped (SIGSTOP)", host.Pid)
	testbus.Await(t, func() bool { // the context may also end before the connection is made
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := node.Join(ctx, t.Name(), node.JoinOptions{Socket: h.path})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("join: %v, want the context's error", err)
		}
		return strings.Contains(err.Error(), want)
	})
	if err := host.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.join(t, node.JoinOptions{})
}

// TestJoinIsCanceled: the error of a canceled Join does not blame a host that had no time to
// answer.
func TestJoinIsCanceled(t *testing.T) {
	path := t.TempDir() + "/bus.sock"
	l, err := peer.Listen(path, peer.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	enough := errors.New("enough of it")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		in := peer.NewReceiver(c)
		defer in.Close()
		if _, _, _, err := in.Next(); err == nil { // the node has sent Hello, and waits
			cancel(enough)
		}
		<-t.Context().Done()
	}()
	_, err = node.Join(ctx, t.Name(), node.JoinOptions{Socket: path})
	if want := fmt.Sprintf("process %d, had not answered yet: ", os.Getpid()); !errors.Is(err, enough) || !strings.Contains(err.Error(), want) {
		t.Errorf("join: %v, want %q and why", err, want)
	}
}

// awaited is a context that calls say when a goroutine waits for its end.
type awaited struct {
	context.Context
	say func()
}

func (c awaited) Done() <-chan struct{} {
	c.say()
	return c.Context.Done()
}

// TestHostDoesNotRead: when the backlog for a host that does not read is full, the node gives up
// the link instead of losing a message, and joins its host again.
func TestHostDoesNotRead(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	cmd := h.hostAlone(t)
	n := h.join(t, node.JoinOptions{Rejoin: true})
	mustPublish(t, n.Directory(), named(1), someFile(t), 1)
	stopProcess(t, cmd.Process)
	asked, waits := make(chan error), make(chan struct{})
	go func() {
		_, err := n.Call(awaited{t.Context(), sync.OnceFunc(func() { close(waits) })}, "stats", nil)
		asked <- err
	}()
	<-waits // otherwise the call could go to the next host
	node.FillBacklog(n)
	if err := <-asked; !errors.Is(err, bus.ErrHostGone) {
		t.Errorf("a question to a host that does not read: %v, want ErrHostGone", err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitFound(t, h.join(t, node.JoinOptions{}).Directory(), named(1))
	if _, err := n.Call(t.Context(), "stats", nil); err != nil {
		t.Error(err)
	}
}

// TestJoinNamesSocketOnHangUp: when the host hangs up during Join, the error names the socket.
func TestJoinNamesSocketOnHangUp(t *testing.T) {
	path := t.TempDir() + "/bus.sock"
	listener, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = conn.Close()
		}
	}()
	if _, err := node.Join(t.Context(), t.Name(), node.JoinOptions{Socket: path}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("join: %v, want an error that names %s", err, path)
	}
}

// TestRejoinLogsMissingHost: a node that waits for a new host logs why there is none, and at which
// socket.
func TestRejoinLogsMissingHost(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	host := h.hostAlone(t)
	lines := make(lineWriter, 16)
	h.join(t, node.JoinOptions{Rejoin: true, Logger: slog.New(slog.NewTextHandler(lines, nil))})
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	for line := range lines {
		if strings.Contains(line, "no host yet") {
			if !strings.Contains(line, h.path) {
				t.Errorf("it does not say where: %s", line)
			}
			return
		}
	}
}

// A lineWriter passes on each written line, and drops lines when it is full.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	select {
	case w <- string(p):
	default:
	}
	return len(p), nil
}

// TestUnsendableOfferIsForgotten: a segment whose Offer could not be sent is not taken for known to
// the host.
func TestUnsendableOfferIsForgotten(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	if known := node.OfferUnsendable(t, n); known != 0 {
		t.Errorf("%d segments are taken for known to the host", known)
	}
	if _, err := n.Call(t.Context(), "stats", nil); err != nil {
		t.Errorf("the link after that: %v", err)
	}
}
