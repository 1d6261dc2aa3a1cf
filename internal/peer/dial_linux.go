package peer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Dial connects to the listener at path. Before it returns, and before any packet is
// sent, it checks the user of the listener: the error is [ErrUntrusted] if that is
// another user. docs/protocol.md has the rules.
func Dial(ctx context.Context, path string, opts DialOptions) (*Conn, error) {
	if err := checkPath(path); err != nil {
		return nil, err
	}
	c, err := opts.dial(ctx, path)
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("connect to %s: there is no socket; is the host running, and is this its address? %w", path, err)
	case errors.Is(err, unix.ECONNREFUSED) && !isSocket(path), errors.Is(err, unix.EPROTOTYPE):
		return nil, fmt.Errorf("connect to %s: it is no socket of a host; is this its address? %w", path, err)
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, fmt.Errorf("connect to %s: no process listens; the host has died or stopped, start it again: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("connect to %s: not allowed; run as the host's user, or have the host admit this one: %w", path, err)
	case ctx.Err() != nil && !errors.Is(err, ErrUntrusted):
		return nil, fmt.Errorf("connect to %s: %w", path, context.Cause(ctx))
	default:
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
}

// isSocket reports whether a path is a socket, or cannot be read.
func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err != nil || info.Mode().Type() == fs.ModeSocket
}

func (o DialOptions) dial(ctx context.Context, path string) (*Conn, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := o.checkFolder(filepath.Dir(path)); err != nil {
		return nil, err
	}
	if err := o.checkSocket(path); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", path)
	var op *net.OpError
	if errors.As(err, &op) {
		err = op.Err // without the path, which the caller's error has
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) {
		<-ctx.Done() // the connection's timer fired before that of the context, which has the cause
	}
	if err != nil {
		return nil, err
	}
	c, err := newConn(conn.(*net.UnixConn))
	if err != nil {
		return nil, err
	}
	if err := o.checkPeer(c); err != nil {
		_ = c.Close() // nothing was sent
		return nil, err
	}
	return c, nil
}

// trusts reports whether listeners of this user are trusted.
func (o DialOptions) trusts(uid uint32) bool {
	return uid == uint32(os.Geteuid()) || slices.Contains(o.AllowUIDs, uid)
}

// checkFolder makes sure that no other user could create or remove a socket in the
// folder. The superuser can, under any mode. In a sticky folder, such as /tmp, other
// users cannot replace an existing socket, and checkSocket checks its owner.
func (o DialOptions) checkFolder(dir string) error {
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		return err
	}
	switch {
	case s.Uid != 0 && !o.trusts(s.Uid):
		return o.untrusted(s.Uid, fmt.Sprintf("the folder %s belongs to", dir), "set XDG_RUNTIME_DIR to a folder of this user's, or have the host listen in one")
	case s.Mode&0o022 != 0 && s.Mode&unix.S_ISVTX == 0:
		return fmt.Errorf("%w: others may write to the folder %s (mode %04o), and could listen there in the host's place: chmod go-w it, or have the host listen in a folder of its own",
			ErrUntrusted, dir, s.Mode&0o7777)
	}
	return nil
}

func (o DialOptions) checkSocket(path string) error {
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		return err
	}
	if !o.trusts(s.Uid) {
		return o.untrusted(s.Uid, "the socket belongs to", "run as the host's user")
	}
	return nil
}

// checkPeer asks the kernel for the user of the listener: the files may have been
// replaced since they were checked.
func (o DialOptions) checkPeer(c *Conn) error {
	if !o.trusts(c.uid) {
		return o.untrusted(c.uid, fmt.Sprintf("process %d, which listens, is one of", c.pid), "run as the host's user")
	}
	return nil
}

func (o DialOptions) untrusted(uid uint32, what, remedy string) error {
	return fmt.Errorf("%w: %s user %d, and this process runs as user %d: %s; if the host of user %d is meant, allow it by name (AllowUIDs of the program, --allow-uid of the command)",
		ErrUntrusted, what, uid, os.Geteuid(), remedy, uid)
}
