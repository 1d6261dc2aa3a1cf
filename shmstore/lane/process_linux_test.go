package lane

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// roleVariable makes the test binary the other process of a test.
const roleVariable = "OMNIBUS_LANE_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The other process has these descriptors. The lanes are named by who sends.
const (
	fdParentLane = 3 + iota // sender's segment, written by the parent
	fdParentBack            // receiver's segment of it, written by the child
	fdChildLane             // sender's segment, written by the child
	fdChildBack             // receiver's segment of it, written by the parent
	fdParentEvent
	fdChildEvent
	fdSocket
	fdEnd
)

const testCapacity = 1 << 16

// duplex is one process's sides of two lanes, one each way. One goroutine uses
// both, and so they share an event.
type duplex struct {
	*Sender
	*Receiver
	socket net.Conn
	close  func()
}

// fail ends both sides.
func (d *duplex) fail(err error) {
	d.Sender.Fail(err)
	d.Receiver.Fail(err)
}

// runRole is the child: "role/waiting".
func runRole(arg string) error {
	role, waiting, _ := strings.Cut(arg, "/")
	var opts Options
	for _, w := range []Waiting{Ladder, Parked, Spinning, Polling} {
		if w.String() == waiting {
			opts.Waiting = w
		}
	}
	d, err := openDuplex(opts)
	if err != nil {
		return err
	}
	run, ok := roles[role]
	if !ok {
		return fmt.Errorf("unknown role %q", role)
	}
	return run(d)
}

// openDuplex maps what the parent made.
func openDuplex(opts Options) (*duplex, error) {
	geo, err := Layout(7, testCapacity)
	if err != nil {
		return nil, err
	}
	parent, err := OpenEvent(fdParentEvent)
	if err != nil {
		return nil, err
	}
	own, err := OpenEvent(fdChildEvent)
	if err != nil {
		return nil, err
	}
	var maps [4][]byte
	for i := range maps {
		fd := fdParentLane + i
		prot := unix.PROT_READ
		if fd == fdParentBack || fd == fdChildLane {
			prot |= unix.PROT_WRITE
		}
		size := geo.SenderBytes()
		if fd == fdParentBack || fd == fdChildBack {
			size = geo.ReceiverBytes()
		}
		if maps[i], err = unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED); err != nil {
			return nil, err
		}
	}
	d, err := newDuplex(geo, [4][]byte{maps[2], maps[3], maps[0], maps[1]}, Events{Own: own, Peer: parent}, opts)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(fdSocket, "socket")
	defer f.Close()
	d.socket, err = net.FileConn(f)
	return d, err
}

// newDuplex takes the segments in the order: outgoing lane, its back; incoming
// lane, its back.
func newDuplex(geo Geometry, maps [4][]byte, events Events, opts Options) (*duplex, error) {
	s, err := NewSender(geo, maps[0], maps[1], events, opts)
	if err != nil {
		return nil, err
	}
	r, err := NewReceiver(geo, maps[3], maps[2], events, opts)
	if err != nil {
		return nil, err
	}
	return &duplex{Sender: s, Receiver: r}, nil
}

// child is the other process.
type child struct {
	*exec.Cmd
	pidfd  int
	stderr strings.Builder
	dead   chan struct{} // closed when the kernel says so
}

// startChild runs a role in another process. When that process is dead, this
// side's lanes fail.
func startChild(tb testing.TB, role string, opts Options, network int, point string) (*duplex, *child) {
	tb.Helper()
	geo := testGeometry(tb, testCapacity)
	files := make([]*os.File, 0, fdEnd-fdParentLane)
	var maps [4][]byte
	for i := range maps {
		size := geo.SenderBytes()
		if i%2 == 1 {
			size = geo.ReceiverBytes()
		}
		var f *os.File
		f, maps[i] = memfd(tb, size)
		files = append(files, f)
	}
	geo.FormatSender(maps[0])
	geo.FormatReceiver(maps[1])
	geo.FormatSender(maps[2])
	geo.FormatReceiver(maps[3])
	own, peer := newEventPair(tb)
	files = append(files, eventFile(tb, own), eventFile(tb, peer))
	d, err := newDuplex(geo, maps, Events{Own: own, Peer: peer}, opts)
	if err != nil {
		tb.Fatal(err)
	}
	ours, theirs := socketPair(tb, network)
	d.socket = ours
	files = append(files, theirs)

	c := &child{Cmd: exec.Command(os.Args[0]), pidfd: -1, dead: make(chan struct{})}
	c.Env = append(os.Environ(), roleVariable+"="+role+"/"+opts.Waiting.String(), faultpoint.Variable+"="+point)
	c.ExtraFiles = files
	c.Stderr = &c.stderr
	c.SysProcAttr = &syscall.SysProcAttr{PidFD: &c.pidfd, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	// Package exec makes the files it passes on block, and that is a property
	// of the open file, which both processes have.
	for _, e := range []*Event{own, peer} {
		if err := unix.SetNonblock(e.FD(), true); err != nil {
			tb.Fatal(err)
		}
	}
	go func() {
		defer close(c.dead)
		c.awaitDeath()
		d.fail(errors.New("killed"))
	}()
	d.close = func() {
		_ = c.Process.Kill()
		<-c.dead
		_ = c.Wait()
		unix.Close(c.pidfd)
	}
	tb.Cleanup(func() {
		d.close()
		ours.Close()
		own.Close()
		peer.Close()
		for _, m := range maps {
			_ = unix.Munmap(m)
		}
		if out := c.stderr.String(); out != "" {
			tb.Errorf("the child said: %s", out)
		}
	})
	return d, c
}

// awaitDeath waits until the kernel says that the child is dead.
func (c *child) awaitDeath() {
	poll := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(poll, -1); n == 1 || (err != nil && !errors.Is(err, unix.EINTR)) {
			return
		}
	}
}

func (c *child) status() syscall.WaitStatus {
	<-c.dead
	_ = c.Wait()
	return c.ProcessState.Sys().(syscall.WaitStatus)
}

func memfd(tb testing.TB, sizeBytes int) (*os.File, []byte) {
	tb.Helper()
	fd, err := unix.MemfdCreate("lane-test", unix.MFD_CLOEXEC)
	if err != nil {
		tb.Fatal(err)
	}
	if err := unix.Ftruncate(fd, int64(sizeBytes)); err != nil {
		tb.Fatal(err)
	}
	m, err := unix.Mmap(fd, 0, sizeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "memfd"), m
}

func newEventPair(tb testing.TB) (a, b *Event) {
	tb.Helper()
	a, err := NewEvent()
	if err != nil {
		tb.Fatal(err)
	}
	b, err = NewEvent()
	if err != nil {
		tb.Fatal(err)
	}
	return a, b
}

// eventFile is a duplicate to hand to a child and close.
func eventFile(tb testing.TB, e *Event) *os.File {
	tb.Helper()
	fd, err := unix.FcntlInt(uintptr(e.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	return os.NewFile(uintptr(fd), "event")
}

func socketPair(tb testing.TB, network int) (ours net.Conn, theirs *os.File) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, network|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	f := os.NewFile(uintptr(fds[0]), "socket")
	defer f.Close()
	ours, err = net.FileConn(f)
	if err != nil {
		tb.Fatal(err)
	}
	return ours, os.NewFile(uintptr(fds[1]), "socket")
}
