package drivertest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// peerVariable contains the descriptor of the socket over which a second process receives requests.
const peerVariable = "OMNIBUS_DRIVERTEST_SOCKET"

// maxPacket is larger than all requests and replies.
const maxPacket = 4 * kib

// request is a request to the other process; unused fields are zero. A descriptor may come with it.
type request struct {
	Do     string
	Memory int // number of memory that an earlier request has made
	Bytes  int64
	Offset int64
	Seed   byte
	Value  uint32
	Handle []byte
}

// reply answers it. A descriptor may come with it.
type reply struct {
	Err    string
	Memory int
	Bytes  int64
	Offset int64
	Handle []byte
}

// Main runs the tests, or serves as the second process for another run of the same binary. TestMain
// calls it last.
func Main(m *testing.M, open Factory) {
	socket, isPeer := os.LookupEnv(peerVariable)
	if !isPeer {
		exit(m.Run())
		return
	}
	if err := servePeer(socket, open); err != nil {
		fmt.Fprintln(os.Stderr, "drivertest, in the other process:", err)
		exit(1)
	}
	exit(0)
}

// exit ends the process for TestMain.
func exit(code int) {
	os.Exit(code) //nolint:forbidigo // Main stands for TestMain, whose last word this is
}

func servePeer(socket string, open Factory) error {
	fd, err := strconv.Atoi(socket)
	if err != nil {
		return err
	}
	conn, err := connOf(fd)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	driver, err := open()
	if err != nil {
		return err
	}
	dev, err := driver.Open(cudaipc.UUID{})
	if err != nil {
		return err
	}
	w := newWorker(driver, dev)
	for {
		var ask request
		given, err := receive(conn, &ask)
		if err != nil {
			return w.close() // the suite has closed the connection
		}
		answer, own := w.do(ask, given)
		if err := send(conn, answer, own); err != nil {
			return err
		}
	}
}

// peer is the other process, as the tests see it.
type peer struct {
	rig    *rig
	cmd    *exec.Cmd
	conn   *net.UnixConn
	killed bool
}

// peer starts the other process.
func (r *rig) peer() *peer {
	r.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		r.Fatal(err)
	}
	conn, err := connOf(pair[0])
	if err != nil {
		r.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "peer")
	defer func() { _ = theirs.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(r.ctx), os.Args[0])
	// The race detector makes a process stay for a second before it ends.
	cmd.Env = append(os.Environ(), peerVariable+"=3", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		r.Fatal(err)
	}
	p := &peer{rig: r, cmd: cmd, conn: conn}
	r.Cleanup(func() {
		if p.killed {
			return
		}
		_ = p.conn.Close()
		if err := p.cmd.Wait(); err != nil {
			r.Errorf("the other process: %v", err)
		}
	})
	return p
}

// kill kills the process.
func (p *peer) kill() {
	p.rig.Helper()
	p.killed = true
	if err := p.cmd.Process.Kill(); err != nil {
		p.rig.Fatal(err)
	}
	_ = p.cmd.Wait() // the error says that it was killed
	_ = p.conn.Close()
}

// ask sends a request to the other process. A descriptor in the reply is closed with the test.
func (p *peer) ask(q request, give ...int) (reply, int) {
	p.rig.Helper()
	deadline, _ := p.rig.ctx.Deadline()
	if err := p.conn.SetDeadline(deadline); err != nil {
		p.rig.Fatal(err)
	}
	if err := send(p.conn, q, give); err != nil {
		p.rig.Fatalf("ask the other process to %s: %v", q.Do, err)
	}
	var a reply
	fds, err := receive(p.conn, &a)
	if err != nil {
		p.rig.Fatalf("the other process, asked to %s: %v", q.Do, err)
	}
	if a.Err != "" {
		p.rig.Fatalf("the other process, asked to %s: %s", q.Do, a.Err)
	}
	for _, fd := range fds {
		p.rig.Cleanup(func() { unix.Close(fd) })
	}
	if len(fds) == 0 {
		return a, -1
	}
	return a, fds[0]
}

func connOf(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%T is no Unix socket", c)
	}
	return conn, nil
}

func send(conn *net.UnixConn, message any, fds []int) error {
	b, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = syscall.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(b, rights, nil)
	return err
}

func receive(conn *net.UnixConn, message any) (fds []int, err error) {
	b, rights := make([]byte, maxPacket), make([]byte, syscall.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(b, rights)
	if err != nil {
		return nil, err
	}
	if oobn > 0 {
		control, err := syscall.ParseSocketControlMessage(rights[:oobn])
		if err != nil {
			return nil, err
		}
		if fds, err = syscall.ParseUnixRights(&control[0]); err != nil {
			return nil, err
		}
	}
	return fds, json.Unmarshal(b[:n], message)
}
