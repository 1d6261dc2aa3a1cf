package posix

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

const (
	ownerOnly      = 0o600
	othersToo      = 0o077
	pageBytes      = 4096
	statBlockBytes = 512
	listBytes      = 32 << 10
)

// The files of a store, by what follows its name. Those of the places have their
// number behind them.
const (
	fileArena     = "arena"
	fileDirectory = "directory"
	fileIndex     = "index"
	fileRoom      = "room"
	fileLedger    = "ledger-"
	fileMarks     = "marks-"
)

// files are those of one store in the directory of all, which is held open, so that
// each is named by one path element.
type files struct {
	fd   int
	path string
	head string // the name of the first of them
}

func openFiles(dir, name string) (files, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return files{}, fmt.Errorf("%w: %s: %w", connector.ErrUnavailable, dir, err)
	}
	return files{fd, dir, "omnibus-" + strconv.Itoa(os.Geteuid()) + "-" + name}, nil
}

func (f files) close() { _ = unix.Close(f.fd) }

func (f files) name(part string) string { return f.head + "." + part }

// open opens a file of the store. A missing one is fs.ErrNotExist; what is none of
// this user's alone is refused.
func (f files) open(name string, how int) (int, error) {
	// Not blocking, so that a pipe in its place holds nobody up.
	fd, err := unix.Openat(f.fd, name, how|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EACCES) {
		return -1, f.foreign(name, err)
	}
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", name, full(err))
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || !mine(st) {
		_ = unix.Close(fd)
		return -1, f.foreign(name, err)
	}
	return fd, nil
}

// mine reports whether a file is a regular one of this user's alone.
func mine(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && int(st.Uid) == os.Geteuid() && st.Mode&othersToo == 0
}

// foreign says what to do about a file that is not this user's alone.
func (f files) foreign(name string, err error) error {
	text := fmt.Sprintf("%s/%s is no regular file of user %d with mode 0600: take another name for the store, or have the file removed", f.path, name, os.Geteuid())
	if err == nil {
		return fmt.Errorf("%w: %s", connector.ErrUnavailable, text)
	}
	return fmt.Errorf("%w: %s: %w", connector.ErrUnavailable, text, err)
}

// make makes an empty file of the store.
func (f files) make(part string) (int, error) {
	fd, err := unix.Openat(f.fd, f.name(part), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, ownerOnly)
	if err != nil {
		return -1, fmt.Errorf("make %s: %w", f.name(part), full(err))
	}
	faultpoint.Hit("posix-file-made")
	return fd, nil
}

// parts lists the files of the store but the first. It takes no descriptor, so that what
// was made goes also where there is none left. One goroutine at a time calls it: the
// directory is read where it was left off.
func (f files) parts() ([]string, error) {
	if _, err := unix.Seek(f.fd, 0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("list %s: %w", f.path, err)
	}
	var all []string
	for b := make([]byte, listBytes); ; {
		n, err := unix.ReadDirent(f.fd, b)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", f.path, full(err))
		}
		if n == 0 {
			break
		}
		_, _, all = unix.ParseDirent(b[:n], -1, all)
	}
	return slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, f.name("")) }), nil
}

// remove takes all files of the store away but the first. What is not this user's
// stays, and is an error.
func (f files) remove() error {
	names, err := f.parts()
	if err != nil {
		return err
	}
	for _, name := range names {
		var st unix.Stat_t
		err := unix.Fstatat(f.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err == nil && !mine(st) {
			return f.foreign(name, nil)
		}
		if err == nil {
			err = unix.Unlinkat(f.fd, name, 0)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", name, err)
		}
		faultpoint.Hit("posix-file-removed")
	}
	return nil
}

// full says the system's errors for want of room in the connector's words.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w: make %s larger, or the store smaller", connector.ErrFull, err, defaultDir)
	}
	for _, e := range []error{unix.ENOMEM, unix.EMFILE, unix.ENFILE} {
		if errors.Is(err, e) {
			return fmt.Errorf("%w: %w", connector.ErrFull, err)
		}
	}
	return err
}

// mapping is memory that other processes have mapped too.
type mapping struct{ data []byte }

// makeMapping makes a file of its final size with all its pages. It is written here,
// or, if it is a place's, by the reader in it.
func (f files) makeMapping(part string, sizeBytes int) (mapping, error) {
	fd, err := f.make(part)
	if err != nil {
		return mapping{}, err
	}
	defer unix.Close(fd)
	err = unix.Ftruncate(fd, int64(sizeBytes))
	if err == nil {
		err = headroom.Allocate(fd, int64(sizeBytes))
	}
	if err != nil {
		return mapping{}, fmt.Errorf("allocate %s, %d bytes: %w", f.name(part), sizeBytes, full(err))
	}
	return mapFile(fd, sizeBytes, unix.PROT_READ|unix.PROT_WRITE)
}

// openMapping maps what makeMapping made in another process.
func (f files) openMapping(part string, sizeBytes int, protection int) (mapping, error) {
	how := unix.O_RDONLY
	if protection&unix.PROT_WRITE != 0 {
		how = unix.O_RDWR
	}
	fd, err := f.open(f.name(part), how)
	if err != nil {
		return mapping{}, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return mapping{}, fmt.Errorf("stat %s: %w", f.name(part), err)
	}
	if st.Size != int64(sizeBytes) || st.Blocks*statBlockBytes < st.Size {
		return mapping{}, fmt.Errorf("%w: %s has %d bytes, of which %d are allocated, instead of %d",
			connector.ErrCorrupt, f.name(part), st.Size, st.Blocks*statBlockBytes, sizeBytes)
	}
	return mapFile(fd, sizeBytes, protection)
}

// mapFile maps a file for this process alone, and not for its children.
func mapFile(fd, sizeBytes, protection int) (mapping, error) {
	data, err := unix.Mmap(fd, 0, sizeBytes, protection, unix.MAP_SHARED)
	if err != nil {
		return mapping{}, fmt.Errorf("map: %w", full(err))
	}
	m := mapping{data}
	if err := unix.Madvise(data, unix.MADV_DONTFORK); err != nil {
		m.release()
		return mapping{}, fmt.Errorf("keep from children: %w", err)
	}
	return m, nil
}

func (m *mapping) release() {
	if m.data != nil {
		_ = unix.Munmap(m.data)
		m.data = nil
	}
}
