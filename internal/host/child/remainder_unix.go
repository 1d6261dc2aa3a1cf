//go:build unix

package child

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// stopWaiting makes the reader of a pipe read what is there, and not wait for more.
func stopWaiting(pipe *os.File) { _ = pipe.SetReadDeadline(time.Unix(0, 1)) }

// Read reads what is left in the pipe; io.EOF: the pipe is empty.
func (r *remainder) Read(p []byte) (n int, err error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(len(p), r.left)]
	_ = r.pipe.SetReadDeadline(time.Time{}) // a passed deadline would fail every read
	conn, err := r.pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := conn.Read(func(fd uintptr) bool {
		for n, err = syscall.Read(int(fd), p); errors.Is(err, syscall.EINTR); {
			n, err = syscall.Read(int(fd), p)
		}
		return true // do not wait
	})
	if err = errors.Join(failed, err); err == nil && n == 0 || errors.Is(err, syscall.EAGAIN) {
		err = io.EOF
	}
	n = max(n, 0)
	r.left -= n
	return n, err
}
