package segment

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// lock is a lock file that this process has locked. The kernel unlocks it when the
// process dies.
type lock struct {
	dir    directory
	name   string // name of the file
	fd     int
	id     identity
	linked bool // the file has its name
}

// errHeld reports that a living process holds the lock, or held it until now.
var errHeld = fmt.Errorf("%w: it holds the lock", connector.ErrBusy)

// newLock makes a lock file for a segment, and locks it. link gives it its name.
func (d directory) newLock(name string) (*lock, error) {
	fd, err := d.create()
	if err != nil {
		return nil, err
	}
	l := &lock{dir: d, name: lockName(name), fd: fd}
	f, err := describeFD(fd)
	l.id = f.identity
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		l.unlock()
		return nil, fmt.Errorf("lock: %w", err)
	}
	return l, nil
}

// lockOf locks the lock file of a segment. A missing file is fs.ErrNotExist.
func (d directory) lockOf(name string) (*lock, error) {
	l := &lock{dir: d, name: lockName(name), linked: true}
	fd, err := d.openAny(l.name, unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	l.fd = fd
	if err := l.acquire(); err != nil {
		l.unlock()
		return nil, err
	}
	return l, nil
}

// acquire locks the file. A consumer removes the file with the segment: a lock that is acquired
// after that protects nothing, and the caller has to look up the file again.
func (l *lock) acquire() error {
	err := unix.Flock(l.fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	f, err := describeFD(l.fd)
	if err != nil {
		return err
	}
	if f.links == 0 {
		return errHeld
	}
	l.id = f.identity
	return l.dir.check(f)
}

// link gives the file its name. A name that is taken is fs.ErrExist.
func (l *lock) link() error {
	if l.linked {
		return nil
	}
	if err := l.dir.link(l.fd, l.name); err != nil {
		return fmt.Errorf("make the lock: %w", spaceError(err))
	}
	l.linked = true
	return nil
}

// remove removes the file, which is locked.
func (l *lock) remove() { _ = l.dir.unlink(l.name) }

func (l *lock) unlock() { _ = unix.Close(l.fd) }
