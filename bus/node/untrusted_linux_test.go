package node_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// strangerUID is a user that no test runs as.
const strangerUID = 4321

func init() {
	// stranger listens on descriptor 3. It returns after one connection has sent bytes or hung up, or when its
	// standard input ends, and prints how many bytes it has received.
	roles["stranger"] = func() {
		const inherited = 3
		if err := unix.Listen(inherited, 8); err != nil {
			fmt.Fprintln(os.Stdout, err)
			return
		}
		fmt.Fprintln(os.Stdout, "ready")
		ready := []unix.PollFd{{Fd: inherited, Events: unix.POLLIN}, {Fd: 0, Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(ready, -1); err == nil {
				break
			}
		}
		heard := 0
		if ready[0].Revents != 0 {
			if fd, _, err := unix.Accept(inherited); err == nil {
				heard, _ = unix.Read(fd, make([]byte, 1024))
				unix.Close(fd)
			}
		}
		fmt.Fprintln(os.Stdout, heard)
	}
}

// TestJoinUntrustedHost: Join sends nothing to a socket in a folder that another user has created.
func TestJoinUntrustedHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have processes and files of two users")
	}
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	path, err := node.SocketPath("b")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket := os.NewFile(uintptr(fd), "socket")
	defer socket.Close()
	err = errors.Join(os.Mkdir(filepath.Dir(path), 0o755), unix.Bind(fd, &unix.SockaddrUnix{Name: path}),
		os.Chown(path, strangerUID, strangerUID), os.Chown(filepath.Dir(path), strangerUID, strangerUID))
	if err != nil {
		t.Fatal(err)
	}
	// The path of the binary may lead through folders that are closed to strangers.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"=stranger")
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: strangerUID, Gid: strangerUID}}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("ready\n"))); err != nil {
		t.Fatal(err)
	}
	n, err := node.Join(t.Context(), t.Name(), node.JoinOptions{Bus: "b"})
	if err == nil {
		n.Close(t.Context())
	}
	if !errors.Is(err, node.ErrUntrusted) || !strings.Contains(err.Error(), fmt.Sprintf("the folder %s belongs to user 4321", filepath.Dir(path))) {
		t.Errorf("Join: %v; want ErrUntrusted that names the folder and the user", err)
	}
	stdin.Close()
	said, err := io.ReadAll(stdout)
	if got := strings.TrimSpace(string(said)); err != nil || got != "0" {
		t.Errorf("the stranger has received %q bytes, %v; want 0", got, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// TestJoinAllowedUID: a program that names the host's user in AllowUIDs can join.
func TestJoinAllowedUID(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have files of two users")
	}
	h := listen(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{})
	if err := os.Chown(h.path, strangerUID, strangerUID); err != nil {
		t.Fatal(err)
	}
	if n, err := node.Join(t.Context(), t.Name(), node.JoinOptions{Socket: h.path}); !errors.Is(err, node.ErrUntrusted) {
		if err == nil {
			n.Close(t.Context())
		}
		t.Errorf("Join: %v, want ErrUntrusted", err)
	}
	h.join(t, node.JoinOptions{AllowUIDs: []uint32{strangerUID}})
}
