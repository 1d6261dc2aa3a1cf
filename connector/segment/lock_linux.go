package segment

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// lock is a lock file that this process has locked. The kernel unlocks it when the
// process dies.
type lock struct {
	dir    directory
	name   string // of the file
	fd     int
	id     identity
	linked bool // whether the file has its name yet
}

// errHeld says that a living process holds the lock, or held it until now.
var errHeld = fmt.Errorf("%w: it holds the lock", connector.ErrBusy)

// lockFor locks the lock file of a segment. Where there is none it makes one, which
// gets its name from link.
func (d directory) lockFor(name string) (*lock, error) {
	l, err := d.lockOf(name)
	if !missing(err) {
		return l, err
	}
	fd, err := d.create()
	if err != nil {
		return nil, err
	}
	l = &lock{dir: d, name: lockName(name), fd: fd}
	f, err := described(fd)
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

// lockOf locks the lock file of a segment. That there is none is fs.ErrNotExist.
func (d directory) lockOf(name string) (*lock, error) {
	fd, f, err := d.open(lockName(name), unix.O_RDWR)
	if err != nil {
		return nil, err
	}
	l := &lock{dir: d, name: lockName(name), fd: fd, id: f.identity, linked: true}
	if err := l.take(); err != nil {
		l.unlock()
		return nil, err
	}
	return l, nil
}

// take locks the file. A consumer removes it with the segment: whoever locks it
// after that has locked nothing, and has to look again.
func (l *lock) take() error {
	err := unix.Flock(l.fd, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if now, err := l.dir.lookup(l.name); err != nil || now.identity != l.id {
		return errHeld
	}
	return nil
}

// link gives the file its name. If somebody else made one meanwhile, it is errHeld.
func (l *lock) link() error {
	if l.linked {
		return nil
	}
	err := l.dir.link(l.fd, l.name)
	if errors.Is(err, fs.ErrExist) {
		return errHeld
	}
	if err != nil {
		return fmt.Errorf("make the lock: %w", full(err))
	}
	l.linked = true
	return nil
}

// remove takes the file away, while it is locked.
func (l *lock) remove() { _ = l.dir.unlink(l.name) }

func (l *lock) unlock() { _ = unix.Close(l.fd) }
