package peer

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// roleVariable selects the role of another process for the test binary.
const roleVariable = "OMNIBUS_PEER_TEST_ROLE"

// pathVariable is the path of the role's socket.
const pathVariable = "OMNIBUS_PEER_TEST_PATH"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		goleak.VerifyTestMain(m)
	case "dial":
		play(dialRole)
	case "listen":
		play(listenRole)
	case "stranger":
		play(strangerRole)
	default:
		play(func(string) error { return fmt.Errorf("no role %q", role) })
	}
}

// play runs a role until its standard input ends.
func play(role func(path string) error) {
	if err := role(os.Getenv(pathVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.Stdout, "ready") // start waits for it
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

var roleConn any // keeps the role's connection or listener reachable

func dialRole(path string) error {
	conn, err := Dial(context.Background(), path, DialOptions{})
	if err != nil {
		return err
	}
	roleConn = conn
	return conn.Send([]byte("hello"), nil)
}

func listenRole(path string) error {
	l, err := Listen(path, ListenOptions{})
	roleConn = l
	return err
}

// start runs the test binary in a role and returns when it is ready. It is
// killed at the end of the test.
func start(t *testing.T, role, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, pathVariable+"="+path)
	begin(t, cmd)
	return cmd
}

// begin starts a role and returns its standard input and output when it is ready.
func begin(t *testing.T, cmd *exec.Cmd) (io.WriteCloser, io.Reader) {
	t.Helper()
	cmd.Stderr = os.Stderr
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
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Process.Kill() // it may be dead
		_ = cmd.Wait()         // it was killed
	})
	line := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(stdout, line); err != nil {
		t.Fatalf("%v: %v", cmd.Env[len(os.Environ()):], err)
	}
	return stdin, stdout
}

// socketPath returns a path whose last folder is missing. It is short enough for
// a socket if the test has a short name.
func socketPath(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "bus", "test.sock")
}

// pair returns a connection. The end of the test closes both ends.
func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// openFiles returns the open files of the process, by descriptor.
func openFiles(t *testing.T) map[string]string {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		if target, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && !strings.HasPrefix(target, "/proc/") {
			files[e.Name()] = target
		}
	}
	return files
}

// checkNoLeak runs f and reports descriptors that it leaves behind.
func checkNoLeak(t *testing.T, f func()) {
	t.Helper()
	before := openFiles(t)
	f()
	for fd, target := range openFiles(t) {
		// The runtime's poller opens its own descriptors once.
		if before[fd] == "" && !strings.Contains(target, "event") {
			t.Errorf("descriptor %s is left behind: %s", fd, target)
		}
	}
}
