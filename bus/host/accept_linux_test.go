package host

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/peer"
)

// TestAcceptWithoutDescriptors: a host without a descriptor for a connection logs that once, with its
// process, the limit and the remedy, and again after a connection was accepted in between.
func TestAcceptWithoutDescriptors(t *testing.T) {
	srv, err := Listen(echoBus(t), filepath.Join(t.TempDir(), "host.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	srv.log = slog.New(slog.NewTextHandler(&log, nil))
	fails := func() (*peer.Conn, error) { return nil, fmt.Errorf("accept: %w", syscall.EMFILE) }
	comes := func() (*peer.Conn, error) {
		conn, other, err := peer.Pair()
		if err == nil {
			err = other.Close() // the process hangs up, which is not logged
		}
		return conn, err
	}
	ends := func() (*peer.Conn, error) {
		srv.close()
		return nil, net.ErrClosed
	}
	calls, steps := 0, []func() (*peer.Conn, error){fails, fails, fails, comes, fails, fails, ends}
	srv.accept(func() (*peer.Conn, error) {
		calls++
		return steps[calls-1]()
	})
	if err := srv.Close(t.Context()); err != nil {
		t.Error(err)
	}
	want := fmt.Sprintf("process %d may have %d descriptors open: %s", os.Getpid(), limits.Files(), limits.FilesAdvice)
	if n := strings.Count(log.String(), want); n != 2 || strings.Count(log.String(), "\n") != 2 {
		t.Errorf("the log says %q %d times:\n%s", want, n, log.String())
	}
}
