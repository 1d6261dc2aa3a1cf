package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// strangerUID is a user that no test runs as.
const strangerUID = 4321

// strangerRole listens on the socket that is its descriptor 3. It closes each connection
// after the first packet or the end of the connection. When its standard input ends, it
// prints how many bytes it has received.
func strangerRole(string) error {
	const inherited = 3
	if err := unix.Listen(inherited, 8); err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready")
	heard, buf := 0, make([]byte, 1024)
	for {
		ready := []unix.PollFd{{Fd: inherited, Events: unix.POLLIN}, {Fd: 0, Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		switch {
		case ready[0].Revents != 0: // first, so that no connection is missed
			fd, _, err := unix.Accept(inherited)
			if err != nil {
				return err
			}
			n, err := unix.Read(fd, buf)
			if err == nil {
				heard += n
			}
			unix.Close(fd)
		case ready[1].Revents != 0:
			fmt.Fprintln(os.Stdout, heard)
			os.Exit(0)
		}
	}
}

// needRoot skips a test of two users unless it runs as root.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have processes and files of two users")
	}
}

// stranger starts a process of another user that listens at path. The returned function
// ends the process, and returns how many bytes it has received.
func stranger(t *testing.T, path string) (heard func() string) {
	t.Helper()
	needRoot(t)
	socket, err := bindSocket(path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	// The binary may lie in folders that other users cannot read.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=stranger")
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strangerUID, Gid: strangerUID}}
	stdin, stdout := begin(t, cmd)
	return func() string {
		stdin.Close()
		said, err := io.ReadAll(stdout)
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(said))
	}
}

// TestDialRefusesOtherUser: the listener may be another user's although the files are not, if
// they were replaced since Dial checked them. Dial sends no packet to it.
func TestDialRefusesOtherUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	heard := stranger(t, path)
	checkNoLeak(t, func() {
		conn, err := Dial(t.Context(), path, DialOptions{AllowUIDs: []uint32{strangerUID + 1, strangerUID + 2}})
		if err == nil {
			_ = conn.Send([]byte("hello"), nil)
			conn.Close()
		}
		if !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), "which listens, is one of user 4321, and this process runs as user 0") {
			t.Errorf("Dial: %v; want ErrUntrusted that names the user", err)
		}
	})
	if got := heard(); got != "0" {
		t.Errorf("the stranger has received %s bytes", got)
	}
}

// TestDialAllowedUID: Dial connects to a listener of a user in AllowUIDs.
func TestDialAllowedUID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	heard := stranger(t, path)
	for _, name := range []string{filepath.Dir(path), path} {
		if err := os.Chown(name, strangerUID, strangerUID); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := Dial(t.Context(), path, DialOptions{AllowUIDs: []uint32{7, strangerUID}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, uid, gid := conn.Credentials(); uid != strangerUID || gid != strangerUID {
		t.Errorf("the peer is of user %d and group %d, want %d", uid, gid, strangerUID)
	}
	if err := conn.Send([]byte("hello"), nil); err != nil {
		t.Error(err)
	}
	if got := heard(); got != "5" {
		t.Errorf("the stranger has received %s bytes, want 5", got)
	}
}

// TestDialFolders: Dial checks the folder and the owner of the socket.
func TestDialFolders(t *testing.T) {
	tests := []struct {
		name           string
		mode           os.FileMode
		folder, socket int // their users; 0: this process's
		named          []uint32
		want           string
	}{
		{name: "private", mode: 0o700},
		{name: "open to readers", mode: 0o755},
		{name: "the group writes", mode: 0o770, want: "others may write to the folder %s (mode 0770)"},
		{name: "all write", mode: 0o707, want: "others may write to the folder %s (mode 0707)"},
		{name: "sticky", mode: os.ModeSticky | 0o777},
		{name: "another's folder", mode: 0o700, folder: strangerUID, want: "the folder %s belongs to user 4321"},
		{name: "another's folder, sticky", mode: os.ModeSticky | 0o777, folder: strangerUID, want: "the folder %s belongs to user 4321"},
		{name: "a named user's folder", mode: 0o700, folder: strangerUID, named: []uint32{strangerUID}},
		{name: "another's socket", mode: 0o700, socket: strangerUID, want: "the socket belongs to user 4321"},
		{name: "another's socket, sticky", mode: os.ModeSticky | 0o777, socket: strangerUID, want: "the socket belongs to user 4321"},
		{name: "a named user's socket", mode: 0o700, socket: strangerUID, named: []uint32{strangerUID}},
		{name: "a third user's", mode: 0o700, folder: strangerUID, socket: 7, named: []uint32{7}, want: "the folder %s belongs to user 4321"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.folder != 0 || tt.socket != 0 {
				needRoot(t)
			}
			l := listenAt(t, filepath.Join(t.TempDir(), "s"))
			dir := filepath.Dir(l.Path())
			if tt.folder != 0 {
				if err := os.Chown(dir, tt.folder, tt.folder); err != nil {
					t.Fatal(err)
				}
			}
			if tt.socket != 0 {
				if err := os.Chown(l.Path(), tt.socket, tt.socket); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Chmod(dir, tt.mode); err != nil {
				t.Fatal(err)
			}
			conn, err := Dial(t.Context(), l.Path(), DialOptions{AllowUIDs: tt.named})
			if err == nil {
				conn.Close()
			}
			if tt.want == "" {
				if err != nil {
					t.Errorf("Dial: %v", err)
				}
				return
			}
			want := tt.want
			if strings.Contains(want, "%s") {
				want = fmt.Sprintf(want, dir)
			}
			if !errors.Is(err, ErrUntrusted) || !strings.Contains(err.Error(), want) {
				t.Errorf("Dial: %v; want ErrUntrusted that says %q", err, want)
			}
		})
	}
}

// timed is a context whose deadline has passed before its timer fires.
type timed struct{ context.Context }

func (timed) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// TestDialTimeoutReportsCause: if the connection times out before its context ends, the error is the cause of the
// context.
func TestDialTimeoutReportsCause(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	listenAt(t, path)
	ctx, cancel := context.WithCancelCause(t.Context())
	late := errors.New("the time is up")
	time.AfterFunc(20*time.Millisecond, func() { cancel(late) })
	if _, err := Dial(timed{ctx}, path, DialOptions{}); !errors.Is(err, late) {
		t.Errorf("got %v, want %v", err, late)
	}
}
