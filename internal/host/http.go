package host

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// web serves metrics and health.
type web struct {
	listener net.Listener
	path     string      // of the socket; empty: TCP
	identity os.FileInfo // of this host's socket file
	server   *http.Server
	done     chan struct{}
}

// Bounds of what a client of the web server may do.
const (
	webHeaderBytes = 16 << 10
	webTimeout     = 5 * time.Second // to send a request, and to read the answer
	webIdleTimeout = time.Minute
)

// openWeb starts the web server.
func (h *running) openWeb() error {
	where, err := h.webAddress()
	if err != nil {
		return err
	}
	w := &web{done: make(chan struct{})}
	if strings.Contains(where, "/") {
		w.path = where
		w.listener, w.identity, err = listenUnix(where)
	} else {
		w.listener, err = net.Listen("tcp", where)
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("http: %w: stop the program that listens there, or choose another port", err)
	case err != nil:
		return fmt.Errorf("http: %w", err)
	}
	w.server = newWebServer(h.routes(w.path == ""), h.opts.Logger, webTimeout)
	h.web = w // from here on requests are answered
	go func() {
		defer close(w.done)
		if err := w.server.Serve(w.listener); !errors.Is(err, http.ErrServerClosed) {
			h.opts.Logger.Error("metrics and health are not served any more", slog.Any("error", err))
		}
	}()
	return nil
}

// newWebServer makes a server that drops a client after the timeout, whether the client sends too
// slowly or does not read.
func newWebServer(pages http.Handler, log *slog.Logger, timeout time.Duration) *http.Server {
	return &http.Server{
		Handler: pages, ReadTimeout: timeout, WriteTimeout: timeout, IdleTimeout: webIdleTimeout,
		MaxHeaderBytes: webHeaderBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// webAddress returns the path of a socket, which contains a slash, or host:port.
func (h *running) webAddress() (string, error) {
	where, absolute := h.opts.HTTP, filepath.Abs
	if where == "" {
		where, absolute = h.pipeline.Bus.HTTP, h.pipeline.Path
	}
	switch {
	case where == "":
		return strings.TrimSuffix(h.socket, ".sock") + ".http.sock", nil
	case strings.Contains(where, "/"):
		return absolute(where)
	}
	return where, nil
}

// maxSocketPath is the length of the longest path of a socket.
const maxSocketPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// listenUnix opens a socket for this user alone. The socket has its mode before it has its final name.
// A socket file at which no process listens is left over, and is replaced.
func listenUnix(path string) (l net.Listener, identity os.FileInfo, err error) {
	born := tempSocketPath(path)
	if longest := max(len(path), len(born)); longest > maxSocketPath {
		return nil, nil, fmt.Errorf("socket path %s: %d bytes, and the system allows %d: choose a shorter one (http), or a loopback address", path, longest, maxSocketPath)
	}
	for _, name := range []string{path, born} {
		if err := removeStaleSocket(name); err != nil {
			return nil, nil, err
		}
	}
	if l, err = net.Listen("unix", born); err != nil {
		return nil, nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err = os.Chmod(born, 0o600); err == nil {
		identity, err = os.Lstat(born)
	}
	if err == nil {
		err = os.Rename(born, path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.Close(), os.Remove(born))
	}
	return l, identity, nil
}

// aliveTimeout bounds the check whether a process listens at a socket.
const aliveTimeout = time.Second

// tempSocketPath returns the first path of a socket, before it is renamed. It is hardly ever longer
// than the final path.
func tempSocketPath(path string) string {
	return filepath.Join(filepath.Dir(path), fmt.Sprintf(".%d", os.Getpid()))
}

func removeStaleSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is a file and no socket: remove it, or choose another path", path)
	}
	c, err := net.DialTimeout("unix", path, aliveTimeout)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) { // a socket of another type, such as that of a bus, is in use too
		return fmt.Errorf("%s is in use by another program: stop it, or choose another path (http)", path)
	}
	return os.Remove(path)
}

// address returns the address that a client needs.
func (w *web) address() string {
	switch {
	case w == nil:
		return ""
	case w.path != "":
		return w.path
	}
	return w.listener.Addr().String()
}

func (w *web) close() error {
	err := w.server.Close()
	<-w.done
	if w.path == "" {
		return err
	}
	info, gone := os.Lstat(w.path)
	if gone == nil && os.SameFile(info, w.identity) { // else the file is that of another host
		gone = os.Remove(w.path)
	}
	return errors.Join(err, gone)
}

func (h *running) routes(tcp bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(h.registry(), promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", h.serveHealth)
	mux.HandleFunc("GET /readyz", h.serveReady(readyTimeout))
	if !tcp {
		return mux
	}
	return localOnly(mux)
}

// localOnly refuses requests that reached a loopback address under another name, such as a web page
// whose own name resolves to it.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Host
		if host, _, err := net.SplitHostPort(r.Host); err == nil {
			name = host
		}
		addr, err := netip.ParseAddr(strings.Trim(name, "[]"))
		if name != "localhost" && (err != nil || !addr.IsLoopback()) {
			http.Error(w, "this address is for this machine alone", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
