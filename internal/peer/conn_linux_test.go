package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// devNull opens a file to send around.
func devNull(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// repeat returns the same descriptor n times.
func repeat(f *os.File, n int) []int {
	fds := make([]int, n)
	for i := range fds {
		fds[i] = int(f.Fd())
	}
	return fds
}

// sendRaw sends a packet without the checks of Send.
func sendRaw(t *testing.T, c *Conn, packet []byte, fds []int) {
	t.Helper()
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	err := c.raw.Control(func(fd uintptr) {
		if err := unix.Sendmsg(int(fd), packet, control, nil, 0); err != nil {
			t.Fatal(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestPackets(t *testing.T) {
	a, b := pair(t)
	file := devNull(t)
	buf := make([]byte, wire.MaxPacket)
	tests := []struct {
		name   string
		packet []byte
		fds    int
	}{
		{name: "one byte", packet: []byte("x")},
		{name: "one descriptor", packet: []byte("hello"), fds: 1},
		{name: "most descriptors", packet: []byte("hello"), fds: wire.MaxDescriptors},
		{name: "longest", packet: bytes.Repeat([]byte("x"), wire.MaxPacket), fds: 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkNoLeak(t, func() {
				if err := a.Send(tt.packet, repeat(file, tt.fds)); err != nil {
					t.Fatal(err)
				}
				n, fds, err := b.Receive(buf)
				if err != nil {
					t.Fatal(err)
				}
				defer process.CloseAll(fds)
				if !bytes.Equal(buf[:n], tt.packet) || len(fds) != tt.fds {
					t.Errorf("received %d bytes and %d descriptors, want %d and %d", n, len(fds), len(tt.packet), tt.fds)
				}
				for _, fd := range fds {
					if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
						t.Errorf("descriptor %d: flags %x, %v; want FD_CLOEXEC", fd, flags, err)
					}
				}
			})
		})
	}
	if _, err := file.Stat(); err != nil {
		t.Errorf("the sender's descriptor: %v", err)
	}
}

func TestSendRefuses(t *testing.T) {
	a, _ := pair(t)
	file := devNull(t)
	for name, err := range map[string]error{
		"nothing":              a.Send(nil, nil),
		"a packet too long":    a.Send(make([]byte, wire.MaxPacket+1), nil),
		"too many descriptors": a.Send([]byte("x"), repeat(file, wire.MaxDescriptors+1)),
	} {
		if !errors.Is(err, wire.CodeInvalid) {
			t.Errorf("Send of %s: %v, want CodeInvalid", name, err)
		}
	}
}

// TestDuplicateAllOrNone: if a descriptor cannot be duplicated, the duplicates of those before it
// are closed.
func TestDuplicateAllOrNone(t *testing.T) {
	file := devNull(t)
	checkNoLeak(t, func() {
		if own, err := process.DuplicateAll([]int{int(file.Fd()), 1 << 30}); !errors.Is(err, unix.EBADF) || own != nil {
			t.Errorf("duplicate = %v, %v; want EBADF", own, err)
		}
	})
}

// TestReceiveWithoutRoomForDescriptors: the error is no protocol error if this process has too
// many files open.
func TestReceiveWithoutRoomForDescriptors(t *testing.T) {
	file := devNull(t)
	a, b := pair(t)
	checkNoLeak(t, func() {
		sendRaw(t, a, []byte("x"), repeat(file, wire.MaxDescriptors))
		var limit unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		few := unix.Rlimit{Cur: uint64(lowestFree(t)) + 1, Max: limit.Max} // one more descriptor
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
			t.Fatal(err)
		}
		_, fds, err := b.Receive(make([]byte, wire.MaxPacket))
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(err, wire.CodeMemory) || fds != nil {
			t.Errorf("Receive: descriptors %v, %v; want CodeMemory", fds, err)
		}
	})
}

// lowestFree is the next descriptor that this process gets.
func lowestFree(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	return fd
}

// TestReceiveGarbage receives packets that Send refuses.
func TestReceiveGarbage(t *testing.T) {
	file := devNull(t)
	tests := []struct {
		name   string
		packet []byte
		fds    int
		want   string
	}{
		{name: "one descriptor too many", packet: []byte("x"), fds: wire.MaxDescriptors + 1, want: "descriptors were lost"},
		{name: "many descriptors", packet: []byte("x"), fds: 200, want: "descriptors were lost"},
		{name: "one byte too many", packet: make([]byte, wire.MaxPacket+1), want: "more than 65536 bytes"},
		{name: "huge, with descriptors", packet: make([]byte, 150_000), fds: 3, want: "more than 65536 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t)
			checkNoLeak(t, func() {
				sendRaw(t, a, tt.packet, repeat(file, tt.fds))
				n, fds, err := b.Receive(make([]byte, wire.MaxPacket))
				if !errors.Is(err, wire.ErrProtocol) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Receive: %v; want ErrProtocol with %q", err, tt.want)
				}
				if n != 0 || fds != nil {
					t.Errorf("Receive returned %d bytes and descriptors %v with its error", n, fds)
				}
			})
		})
	}
}

func TestReceiveEnd(t *testing.T) {
	buf := make([]byte, wire.MaxPacket)
	t.Run("closed", func(t *testing.T) {
		a, b := pair(t)
		if err := a.Send([]byte("last"), nil); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if n, _, err := b.Receive(buf); err != nil || string(buf[:n]) != "last" {
			t.Errorf("Receive = %q, %v; want the last packet", buf[:n], err)
		}
		for range 2 {
			if _, _, err := b.Receive(buf); err != io.EOF {
				t.Errorf("Receive: %v, want io.EOF", err)
			}
		}
		if err := b.Send([]byte("x"), nil); !errors.Is(err, ErrGone) {
			t.Errorf("Send: %v, want ErrGone", err)
		}
	})
	t.Run("closed without reading", func(t *testing.T) {
		a, b := pair(t)
		if err := errors.Join(b.Send([]byte("unread"), nil), a.Send([]byte("last"), nil)); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if n, _, err := b.Receive(buf); err != nil || string(buf[:n]) != "last" {
			t.Errorf("Receive = %q, %v; want the last packet", buf[:n], err)
		}
		if _, _, err := b.Receive(buf); err != io.EOF {
			t.Errorf("Receive: %v, want io.EOF", err)
		}
	})
	t.Run("packet of no bytes", func(t *testing.T) {
		a, b := pair(t)
		sendRaw(t, a, nil, nil)
		if _, _, err := b.Receive(buf); err != io.EOF {
			t.Errorf("Receive: %v, want io.EOF", err)
		}
	})
	t.Run("descriptors with no bytes", func(t *testing.T) {
		a, b := pair(t)
		file := devNull(t)
		checkNoLeak(t, func() {
			var sendErr error
			err := a.raw.Control(func(fd uintptr) { sendErr = sendRightsAlone(fd, repeat(file, 3)...) })
			if err := errors.Join(err, sendErr); err != nil {
				t.Fatal(err)
			}
			if _, fds, err := b.Receive(buf); err != io.EOF || fds != nil {
				t.Errorf("Receive: descriptors %v, %v; want io.EOF", fds, err)
			}
		})
	})
}

func TestDeadlineAndClose(t *testing.T) {
	a, b := pair(t)
	buf := make([]byte, wire.MaxPacket)
	if err := b.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Receive(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Receive after its deadline: %v", err)
	}
	if err := b.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	received := make(chan error)
	go func() {
		_, _, err := b.Receive(buf)
		received <- err
	}()
	if err := a.Send([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if err := <-received; err != nil {
		t.Errorf("Receive: %v", err)
	}
	b.Close()
	if _, _, err := b.Receive(buf); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Receive after Close: %v, want net.ErrClosed", err)
	}
}

func TestCredentials(t *testing.T) {
	a, b := pair(t)
	for _, c := range []*Conn{a, b} {
		if pid, uid, gid := c.Credentials(); pid != os.Getpid() || int(uid) != os.Getuid() || int(gid) != os.Getgid() {
			t.Errorf("Credentials = %d, %d, %d", pid, uid, gid)
		}
	}
}

func TestDialRefuses(t *testing.T) {
	path := socketPath(t)
	l, err := Listen(path, ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stale := path + "2"
	if err := os.Link(path, stale); err != nil {
		t.Fatal(err)
	}
	l.Close()
	stream, err := net.Listen("unix", path+"3")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	for name, tt := range map[string]struct{ path, want string }{
		"a directory":        {path: filepath.Dir(path), want: "no socket of a host"},
		"another's":          {path: path + "3", want: "no socket of a host"},
		"nothing there":      {path: path, want: "is the host running"},
		"no process listens": {path: stale, want: "no process listens"},
		"too long":           {path: "/" + strings.Repeat("x", 107), want: "108 bytes, and the system allows 107"},
		"empty":              {path: "", want: "empty"},
		"abstract":           {path: "@bus", want: "it would be an abstract address"},
	} {
		if conn, err := Dial(t.Context(), tt.path, DialOptions{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: Dial = %v, %v; want %q", name, conn, err, tt.want)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough of it")
	cancel(enough)
	if _, err := Dial(ctx, path, DialOptions{}); !errors.Is(err, enough) {
		t.Errorf("Dial with an ended context: %v, want its cause", err)
	}
}

func TestPacketsDoNotAllocate(t *testing.T) {
	a, b := pair(t)
	packet, buf := make([]byte, 100), make([]byte, wire.MaxPacket)
	n := testing.AllocsPerRun(100, func() {
		if err := a.Send(packet, nil); err != nil {
			t.Fatal(err)
		}
		if sent, err := a.trySend(packet, nil); err != nil || !sent {
			t.Fatal(sent, err)
		}
		for range 2 {
			if _, _, err := b.Receive(buf); err != nil {
				t.Fatal(err)
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// TestClosingDoesNotLinger: a peer may send a socket whose close lingers for an hour.
func TestClosingDoesNotLinger(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	const hour = 3600
	err = errors.Join(
		unix.Connect(fd, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}),
		unix.SetNonblock(fd, true),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: hour}),
	)
	for err == nil { // unread data stays in the socket's buffer
		_, err = unix.Write(fd, make([]byte, 1<<20))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		process.CloseAll([]int{fd})
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(20 * time.Second):
		t.Fatal("the close lingers")
	}
}
