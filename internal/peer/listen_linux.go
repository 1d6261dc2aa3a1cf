package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Listener accepts connections at a path.
type Listener struct {
	path     string
	socket   *net.UnixListener
	identity os.FileInfo // of the socket file that is ours
	lock     *os.File

	closeOnce sync.Once
	closeErr  error
}

// Listen accepts connections at path. If only the last directory of path is
// missing, it makes that, with mode 0700. A process that listens holds a lock on
// the file path.lock: a second process gets an error with the process id of the
// first. A socket file without a listener was left by a process that has died,
// and is replaced.
func Listen(path string, opts ListenOptions) (*Listener, error) {
	opts = opts.withDefaults()
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	if err := checkPath(path); err != nil {
		return nil, err
	}
	l, err := listen(path, opts)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

func listen(path string, opts ListenOptions) (_ *Listener, err error) {
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	l := &Listener{path: path}
	if l.lock, err = takeLock(path + ".lock"); err != nil {
		return nil, err
	}
	if err = removeStale(path); err == nil {
		l.socket, err = bind(path, opts)
	}
	if err == nil {
		if l.identity, err = os.Lstat(path); err != nil {
			_ = l.socket.Close() // there is no connection yet
		}
	}
	if err != nil {
		_ = l.lock.Close() // releases the lock even if it fails
		return nil, err
	}
	return l, nil
}

// takeLock locks the file and writes the process id into it. The lock lasts as
// long as the file is open, and no longer than the process.
func takeLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = fmt.Errorf("%w by %s; stop it, or choose another name", ErrInUse, holder(f))
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
	}
	if err != nil {
		_ = f.Close() // releases the lock, if it is held, even if it fails
		return nil, err
	}
	return f, nil
}

// holder names the process that has the lock, if the file has its process id.
func holder(lock *os.File) string {
	var b [20]byte
	n, _ := lock.ReadAt(b[:], 0) // a file that cannot be read names no process
	if pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:n]))); err == nil && pid > 0 {
		return fmt.Sprintf("process %d", pid)
	}
	return "another process"
}

// removeStale removes the socket file of a dead process. The caller has the
// lock.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errors.New("there is a file that is no socket; remove it, or choose another name")
	}
	if err := checkDead(path); err != nil {
		return err
	}
	return os.Remove(path)
}

// checkDead returns an error if a process listens at the socket: its lock file may have been removed.
func checkDead(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	switch err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil: // of another type, or too busy
		return fmt.Errorf("%w by another process (%w); stop it, or choose another name", ErrInUse, err)
	}
	owner := "another process"
	if peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
		owner = fmt.Sprintf("process %d", peer.Pid)
	}
	return fmt.Errorf("%w by %s, whose file %s.lock is gone; stop it, or choose another name", ErrInUse, owner, path)
}

// bind makes the socket file and listens.
func bind(path string, opts ListenOptions) (*net.UnixListener, error) {
	f, err := bindSocket(path, opts.Mode)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // FileListener has a descriptor of its own
	err = os.Chmod(path, opts.Mode)
	if err == nil {
		err = unix.Listen(int(f.Fd()), opts.Backlog)
	}
	var l net.Listener
	if err == nil {
		l, err = net.FileListener(f)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return l.(*net.UnixListener), nil
}

// bindSocket makes the socket file. Its mode is that of the socket's own inode,
// less the umask. The mode is set before bind: the file never has a wider one, and
// the umask, which belongs to all threads of the process, stays as it is. The
// caller adds the bits that the umask removed, with chmod.
func bindSocket(path string, mode fs.FileMode) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = unix.Fchmod(fd, uint32(mode))
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrUnix{Name: path})
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Path returns the path that clients dial.
func (l *Listener) Path() string { return l.path }

// Accept waits for a connection. It returns net.ErrClosed after Close. The mode of
// the socket file admits the user of the peer; the caller may check more, by
// [Conn.Credentials].
func (l *Listener) Accept() (*Conn, error) {
	uc, err := l.socket.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("accept at %s: %w", l.path, err)
	}
	return newConn(uc)
}

// Close stops listening, removes the socket file if it is still the one that
// Listen made, and releases the lock. Connections stay open. Close may be
// called twice.
func (l *Listener) Close() error {
	l.closeOnce.Do(func() {
		err := l.socket.Close()
		if info, statErr := os.Lstat(l.path); statErr == nil && os.SameFile(info, l.identity) {
			err = errors.Join(err, os.Remove(l.path))
		}
		l.closeErr = errors.Join(err, l.lock.Close())
	})
	return l.closeErr
}
