package peer

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func listenAt(t *testing.T, path string) *Listener {
	t.Helper()
	l, err := Listen(path, ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestListenAndDial(t *testing.T) {
	checkNoLeak(t, func() {
		l, err := Listen(socketPath(t), ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		client, err := Dial(t.Context(), l.Path(), DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Send([]byte("hello"), nil); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 10)
		if n, _, err := server.Receive(buf); err != nil || string(buf[:n]) != "hello" {
			t.Errorf("Receive = %q, %v", buf[:n], err)
		}
		for _, c := range []*Conn{client, server} {
			if pid, _, _ := c.Credentials(); pid != os.Getpid() {
				t.Errorf("the peer is process %d, want %d", pid, os.Getpid())
			}
			c.Close()
		}
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept after Close: %v, want net.ErrClosed", err)
		}
		if _, err := os.Lstat(l.Path()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket file after Close: %v", err)
		}
	})
}

// TestSocketMode makes sockets under several umasks. The umask belongs to the
// whole process, so the test must not run in parallel with others.
func TestSocketMode(t *testing.T) {
	for _, umask := range []int{0, 0o022, 0o777} {
		for _, mode := range []fs.FileMode{0, 0o600, 0o666} {
			t.Run(fmt.Sprintf("umask %o mode %o", umask, mode), func(t *testing.T) {
				path := socketPath(t)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				defer unix.Umask(unix.Umask(umask))
				l, err := Listen(path, ListenOptions{Mode: mode})
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				want := mode
				if mode == 0 {
					want = 0o600
				}
				if got := modeOf(t, path); got != want {
					t.Errorf("the socket has mode %o, want %o", got, want)
				}
			})
		}
	}
}

// TestSocketModeAtBind checks the mode of the file before Listen has changed it.
func TestSocketModeAtBind(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	path := filepath.Join(filepath.Dir(filepath.Dir(socketPath(t))), "s")
	f, err := bindSocket(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := modeOf(t, path); got != 0o600 {
		t.Errorf("the socket has mode %o, want 600", got)
	}
}

func modeOf(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestListenMakesOneDirectory(t *testing.T) {
	path := socketPath(t)
	listenAt(t, path)
	if got := modeOf(t, filepath.Dir(path)); got != 0o700 {
		t.Errorf("the directory has mode %o, want 700", got)
	}
	deep := filepath.Join(filepath.Dir(path), "a", "b", "s")
	if _, err := Listen(deep, ListenOptions{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Listen in a directory whose parent is missing: %v", err)
	}
}

func TestListenRefuses(t *testing.T) {
	path := socketPath(t)
	l := listenAt(t, path)
	file := path + "file"
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		path string
		opts ListenOptions
		want string
	}{
		{name: "path too long", path: path + strings.Repeat("x", 108), want: "the system allows 107"},
		{name: "a file that is no socket", path: file, want: "a file that is no socket"},
		{name: "mode", path: path, opts: ListenOptions{Mode: fs.ModeSetuid}, want: "only permission bits"},
		{name: "backlog", path: path, opts: ListenOptions{Backlog: -1}, want: "must not be negative"},
		{name: "in use here", path: path, want: fmt.Sprintf("listen at %s: in use by process %d", path, os.Getpid())},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			checkNoLeak(t, func() {
				if _, err := Listen(tt.path, tt.opts); err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("Listen: %v; want %q", err, tt.want)
				}
			})
		})
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file at the path: %q, %v", b, err)
	}
	if conn, err := Dial(t.Context(), l.Path(), DialOptions{}); err != nil {
		t.Errorf("Dial after the refusals: %v", err)
	} else {
		conn.Close()
	}
}

func TestSecondListenerIsRefused(t *testing.T) {
	path := socketPath(t)
	first := start(t, "listen", path)
	_, err := Listen(path, ListenOptions{})
	if want := fmt.Sprintf("process %d", first.Process.Pid); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), want) {
		t.Errorf("Listen where %s listens: %v, want ErrInUse that names it", want, err)
	}

	// The first host dies, and leaves its socket behind.
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Process.Wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("the socket of the process that was killed: %v", err)
	}
	listenAt(t, path)
	conn, err := Dial(t.Context(), path, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

// TestLiveSocketIsKept: a live host keeps its socket if its lock file was removed, and so does a program with a socket
// of another type.
func TestLiveSocketIsKept(t *testing.T) {
	l := listenAt(t, filepath.Join(t.TempDir(), "a.sock"))
	if err := os.Remove(l.Path() + ".lock"); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(l.Path(), ListenOptions{}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("Listen: %v, want ErrInUse that names this process", err)
	}
	path := filepath.Join(t.TempDir(), "b.sock")
	stream, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := Listen(path, ListenOptions{}); !errors.Is(err, ErrInUse) {
		t.Errorf("Listen at a socket of another type: %v, want ErrInUse", err)
	}
	for _, path := range []string{l.Path(), path} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
}

// TestLockWithoutNumber listens at a locked path whose lock file has no process id.
func TestLockWithoutNumber(t *testing.T) {
	l := listenAt(t, socketPath(t))
	if err := os.Truncate(l.Path()+".lock", 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(l.Path(), ListenOptions{}); !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("Listen: %v, want ErrInUse by another process", err)
	}
}

// TestLockRefusesSymlink: in a shared folder another user can make the lock file a link to a file of
// this user, which Listen would truncate.
func TestLockRefusesSymlink(t *testing.T) {
	path := socketPath(t)
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	file := path + "file"
	if err := errors.Join(os.WriteFile(file, []byte("precious"), 0o600), os.Symlink(file, path+".lock")); err != nil {
		t.Fatal(err)
	}
	if l, err := Listen(path, ListenOptions{}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Listen: %v, want ELOOP", err)
		if err == nil {
			l.Close()
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file that the link leads to: %q, %v", b, err)
	}
}

// TestCloseKeepsReplacedSocket closes a listener whose socket file has been
// replaced.
func TestCloseKeepsReplacedSocket(t *testing.T) {
	l := listenAt(t, socketPath(t))
	if err := errors.Join(os.Rename(l.Path(), l.Path()+".old"), os.WriteFile(l.Path(), []byte("new"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if b, err := os.ReadFile(l.Path()); err != nil || string(b) != "new" {
		t.Errorf("the file that replaced the socket: %q, %v", b, err)
	}
}
