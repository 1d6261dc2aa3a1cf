//go:build unix

package host

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestListenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "http.sock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "is a file and no socket") {
		t.Errorf("over a file: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}

	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "in use by another program") {
		t.Errorf("over a socket in use: %v", err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	// So is the socket of a process with this process's number that was killed before the rename.
	if err := os.Link(path, tempSocketPath(path)); err != nil {
		t.Fatal(err)
	}
	l, _, err := listenUnix(path)
	if err != nil {
		t.Fatalf("over a dead socket: %v", err)
	}
	defer l.Close()
	if info, err := os.Lstat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if there, err := os.ReadDir(filepath.Dir(path)); len(there) != 1 {
		t.Errorf("left behind: %v, %v", there, err)
	}
}

// TestSocketsOfOthers: a host replaces no socket of any type at which a process listens, and removes no
// socket that has replaced its own.
func TestSocketsOfOthers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.http.sock")
	l, identity, err := listenUnix(path)
	if err != nil {
		t.Fatal(err)
	}
	w := &web{listener: l, path: path, identity: identity, server: &http.Server{ReadTimeout: time.Second}, done: make(chan struct{})}
	close(w.done)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	other, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, _, err := listenUnix(path); err == nil || !strings.Contains(err.Error(), "in use by another program") {
		t.Errorf("over a socket of another type: %v", err)
	}
	if err := errors.Join(w.close(), l.Close()); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the socket of another host is gone: %v", err)
	}
}

// TestListenUnixAtTheLimit: a path may be as long as the system allows. The error for a longer one says
// what to do.
func TestListenUnixAtTheLimit(t *testing.T) {
	dir, err := os.MkdirTemp("", "omnibus") //nolint:usetesting // t.TempDir has the test's name in it: too long for a socket's path on some systems
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, strings.Repeat("x", maxSocketPath-len(dir)-1))
	l, _, err := listenUnix(path)
	if err != nil {
		t.Fatalf("%d bytes: %v", len(path), err)
	}
	_ = l.Close()
	if _, _, err := listenUnix(path + "x"); err == nil || !strings.Contains(err.Error(), "choose a shorter one (http), or a loopback address") {
		t.Errorf("%d bytes: %v", len(path)+1, err)
	}
}

func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = (&running{opts: Options{HTTP: taken.Addr().String()}}).openWeb()
	if err == nil || !strings.HasSuffix(err.Error(), "stop the program that listens there, or choose another port") {
		t.Errorf("got %v", err)
	}
}

// A client that does not read its answers, or does not end its request, is dropped: it would use a
// goroutine and a descriptor for as long as it lives.
func TestSlowHTTPClientsAreDropped(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 64<<10)) })
	for name, question := range map[string]string{
		"reads nothing":         "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"never ends its body":   "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n",
		"never ends its header": "GET / HTTP/1.1\r\nHost: localhost\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
			if err != nil {
				t.Fatal(err)
			}
			server := newWebServer(page, slog.New(slog.DiscardHandler), 50*time.Millisecond)
			served := make(chan error)
			go func() { served <- server.Serve(l) }()
			c, err := net.Dial("unix", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			for again := true; again; again = name == "reads nothing" && err == nil {
				_, err = c.Write([]byte(question))
			}
			if err == nil {
				_, _ = io.Copy(io.Discard, c) // ends when the server drops the connection
			}
			_ = c.Close()
			_ = server.Close()
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		})
	}
}

func TestLocalOnly(t *testing.T) {
	ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, want := range map[string]int{
		"localhost": http.StatusOK, "localhost:9464": http.StatusOK, "127.0.0.1:9464": http.StatusOK, "[::1]:9464": http.StatusOK, "[::1]": http.StatusOK,
		"rebound.example:9464": http.StatusForbidden, "10.0.0.1:9464": http.StatusForbidden, "": http.StatusForbidden,
	} {
		req := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
		req.Host = name
		got := httptest.NewRecorder()
		localOnly(ok).ServeHTTP(got, req)
		if got.Code != want {
			t.Errorf("%q: %d, want %d", name, got.Code, want)
		}
	}
}

func TestPrivateFolder(t *testing.T) {
	dir := t.TempDir()
	if err := privateFolder(filepath.Join(dir, "a", "b")); err != nil {
		t.Error(err)
	}
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := privateFolder(open); err == nil || !strings.Contains(err.Error(), "others may write to") {
		t.Errorf("got %v", err)
	}
	if err := privateFolder("/dev/null/omnibus"); err == nil || !strings.Contains(err.Error(), "set XDG_RUNTIME_DIR to one of your own") {
		t.Errorf("got %v", err)
	}
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := privateFolder(filepath.Join(dir, "link")); err == nil || !strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("got %v", err)
	}
}
