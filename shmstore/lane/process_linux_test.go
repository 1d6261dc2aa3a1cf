package lane

import (
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

// The descriptors of the other process. The lanes are named by the sender.
const (
	fdParentLane = 3 + iota // sender's segment, written by the parent
	fdParentBack            // receiver's segment of it, written by the child
	fdChildLane             // sender's segment, written by the child
	fdChildBack             // receiver's segment of it, written by the parent
	fdSocket
	fdEnd
)

const testCapacity = 1 << 16

// duplex is one process's sides of two lanes, one in each direction, and its end of the socket on which
// the receivers sleep.
type duplex struct {
	*Sender
	*Receiver
	socket net.Conn
	woken  [64]byte
}

// wake wakes the other process's receiver. An error is ignored: the process may be gone.
func (d *duplex) wake() { _, _ = d.socket.Write([]byte{1}) }

// sleep returns when the other process wakes this one, or has ended: then the error is [io.EOF].
func (d *duplex) sleep() error {
	_, err := d.socket.Read(d.woken[:])
	return err
}

// await waits for a frame.
func (d *duplex) await() error { return await(d.Receiver, d.sleep) }

// runRole is the child: "role/waiting".
func runRole(arg string) error {
	role, waiting, _ := strings.Cut(arg, "/")
	d, err := openDuplex(optionsOf(waiting))
	if err != nil {
		return err
	}
	run, ok := roles[role]
	if !ok {
		return fmt.Errorf("unknown role %q", role)
	}
	return run(d)
}

// optionsOf returns the options of a Waiting, by its name.
func optionsOf(waiting string) (opts Options) {
	for _, w := range waitings {
		if w.name == waiting {
			opts.Waiting = w.waiting
		}
	}
	return opts
}

// openDuplex maps the segments that the parent made.
func openDuplex(opts Options) (*duplex, error) {
	geo, err := Layout(7, testCapacity)
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
	f := os.NewFile(fdSocket, "socket")
	defer f.Close()
	socket, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return newDuplex(geo, [4][]byte{maps[2], maps[3], maps[0], maps[1]}, socket, opts)
}

// newDuplex takes the segments in this order: outgoing lane, its receiver's segment; incoming
// lane, its receiver's segment.
func newDuplex(geo Geometry, maps [4][]byte, socket net.Conn, opts Options) (d *duplex, err error) {
	d = &duplex{socket: socket}
	if d.Sender, err = NewSender(geo, maps[0], maps[1], d.wake); err != nil {
		return nil, err
	}
	d.Receiver, err = NewReceiver(geo, maps[3], maps[2], opts)
	return d, err
}

// child is the other process.
type child struct {
	*exec.Cmd
	stderr strings.Builder
	dead   chan struct{} // closed when it has ended
}

// startChild runs a role in another process, with a Waiting by its name.
func startChild(tb testing.TB, role, waiting string, network int, point string) (*duplex, *child) {
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
	ours, theirs := socketPair(tb, network)
	files = append(files, theirs)
	d, err := newDuplex(geo, maps, ours, optionsOf(waiting))
	if err != nil {
		tb.Fatal(err)
	}

	c := &child{Cmd: exec.Command(os.Args[0]), dead: make(chan struct{})}
	c.Env = append(os.Environ(), roleVariable+"="+role+"/"+waiting, faultpoint.Variable+"="+point)
	c.ExtraFiles = files
	c.Stderr = &c.stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	go func() {
		defer close(c.dead)
		_ = c.Wait() // the process state has more details
	}()
	tb.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.dead
		ours.Close()
		for _, m := range maps {
			_ = unix.Munmap(m)
		}
		if out := c.stderr.String(); out != "" {
			tb.Errorf("the child's output: %s", out)
		}
	})
	return d, c
}

func (c *child) status() syscall.WaitStatus {
	<-c.dead
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
