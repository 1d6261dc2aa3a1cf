package bus_test

import (
	"errors"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestHostDoesNotRead: a node never loses a message and goes on as if nothing had
// happened. When there is no room for one it gives the link up, and finds its host
// anew.
func TestHostDoesNotRead(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	cmd := h.hostAlone(t)
	n := h.join(t, bus.JoinOptions{Rejoin: true})
	mustPublish(t, n.Directory(), named(1), someFile(t), 1)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	asked := make(chan error)
	go func() {
		_, err := n.Call(t.Context(), "stats", nil)
		asked <- err
	}()
	bus.SayMuch(n)
	if err := <-asked; !errors.Is(err, bus.ErrHostGone) {
		t.Errorf("a question to a host that does not read: %v, want ErrHostGone", err)
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	awaitFound(t, h.join(t, bus.JoinOptions{}).Directory(), named(1))
	if _, err := n.Call(t.Context(), "stats", nil); err != nil {
		t.Error(err)
	}
}

// TestOfferThatCannotBeSent: what the host was not told of is not known to it.
func TestOfferThatCannotBeSent(t *testing.T) {
	h := exchanging(t, bus.Options{})
	n := h.join(t, bus.JoinOptions{})
	if known := bus.OfferInVain(t, n); known != 0 {
		t.Errorf("the host is taken to know of %d segments", known)
	}
	if _, err := n.Call(t.Context(), "stats", nil); err != nil {
		t.Errorf("the link after that: %v", err)
	}
}
