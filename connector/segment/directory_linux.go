package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// directory is the directory of segments and their locks, held open, so that every file in it is
// named by one path element.
type directory struct {
	fd   int
	path string
	user int
}

func openDirectory(path string) (directory, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return directory{}, fmt.Errorf("%w: %s: %w", connector.ErrUnavailable, path, err)
	}
	return directory{fd, path, os.Geteuid()}, nil
}

func (d directory) close() { _ = unix.Close(d.fd) }

// space returns the size of the file system and its free bytes; 0 where it has no limit.
func (d directory) space() (whole, left int64) {
	var st unix.Statfs_t
	if unix.Fstatfs(d.fd, &st) != nil {
		return 0, 0
	}
	return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize //nolint:gosec // the kernel's own figures
}

// identity identifies a file. A file with several values one after another had them all from one
// transport.
type identity struct {
	inode uint64
	born  int64 // in nanoseconds; 0 where the kernel does not know
}

// file is the metadata of a file.
type file struct {
	identity
	mode  uint32
	owner uint32
	links uint32
	size  int64
	bytes int64 // allocated bytes
}

// lookup returns the metadata of a directory entry of any kind.
func (d directory) lookup(name string) (file, error) {
	return describe(d.fd, name, unix.AT_SYMLINK_NOFOLLOW)
}

// describe returns the metadata of an open file, or of a named one.
func describe(fd int, name string, flags int) (file, error) {
	var st unix.Statx_t
	if err := unix.Statx(fd, name, flags, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &st); err != nil {
		return file{}, err
	}
	const block = 512
	return file{
		identity: identity{inode: st.Ino, born: st.Btime.Sec*1e9 + int64(st.Btime.Nsec)},
		mode:     uint32(st.Mode), owner: st.Uid, links: st.Nlink,
		size: int64(st.Size), bytes: int64(st.Blocks) * block, //nolint:gosec // the kernel's own figures
	}, nil
}

func describeFD(fd int) (file, error) { return describe(fd, "", unix.AT_EMPTY_PATH) }

// check refuses files that are not regular files of this user.
func (d directory) check(f file) error {
	if f.mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: the name belongs to a file that is not regular", connector.ErrKey)
	}
	if int(f.owner) != d.user {
		return fmt.Errorf("%w: the file belongs to user %d", connector.ErrKey, f.owner)
	}
	return nil
}

// isSame reports whether the open file is the one that lookup found under the name, and still has
// that name.
func (d directory) isSame(fd int, name string, seen file) bool {
	now, err := describeFD(fd)
	if err != nil || now.identity != seen.identity {
		return false
	}
	if now.links == seen.links {
		return true
	}
	again, err := d.lookup(name) // it has gained or lost a name, as spares do
	return err == nil && again.identity == seen.identity
}

// open opens a segment, a lock or a journal. A missing file is fs.ErrNotExist.
func (d directory) open(name string, how int) (fd int, f file, err error) {
	fd, err = d.openAny(name, how)
	if err != nil {
		return -1, file{}, err
	}
	f, err = describeFD(fd)
	if err == nil {
		err = d.check(f)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, file{}, err
	}
	return fd, f, nil
}

// openAny opens a file that is no directory, link or device.
func (d directory) openAny(name string, how int) (int, error) {
	// O_NONBLOCK: a pipe with this name must not block the open.
	fd, err := unix.Openat(d.fd, name, how|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EISDIR) {
		return -1, fmt.Errorf("%w: the name belongs to a file that is not regular", connector.ErrKey)
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		// The file had this name until now, and its writer holds a lease while it checks whether
		// the file is free.
		return -1, fmt.Errorf("%w: it had the file leased", connector.ErrBusy)
	}
	if err != nil {
		return -1, fmt.Errorf("open: %w", spaceError(err))
	}
	return fd, nil
}

const ownerOnly = 0o600

// create makes a file without a name. Until it is linked, the file ends with its descriptor, so
// that no incomplete file stays.
func (d directory) create() (int, error) {
	fd, err := unix.Openat(d.fd, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, ownerOnly)
	if err != nil {
		return -1, fmt.Errorf("make a file in %s: %w", d.path, spaceError(err))
	}
	return fd, nil
}

// linkByProc is set where files are linked through /proc: Linux before 6.10 lets only privileged
// processes link a descriptor, which costs a third less.
var linkByProc atomic.Bool

// link gives a file its name. A name that is taken is fs.ErrExist.
func (d directory) link(fd int, name string) error {
	if !linkByProc.Load() {
		err := unix.Linkat(fd, "", d.fd, name, unix.AT_EMPTY_PATH)
		if !isMissing(err) { // fs.ErrNotExist may also mean the directory
			return err
		}
	}
	err := unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), d.fd, name, unix.AT_SYMLINK_FOLLOW)
	if err == nil {
		linkByProc.Store(true)
	}
	return err
}

// unlink removes a name. A missing name is fs.ErrNotExist.
func (d directory) unlink(name string) error { return unix.Unlinkat(d.fd, name, 0) }

// spaceError maps the system's errors for missing resources to those of package connector.
func spaceError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w: make %s larger, or remove files there", connector.ErrFull, err, defaultDir)
	}
	for _, e := range []error{unix.ENOMEM, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", connector.ErrFull, err)
		}
	}
	if errors.Is(err, unix.EFBIG) {
		return fmt.Errorf("%w: %w", connector.ErrTooLarge, err)
	}
	return err
}

func isMissing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
