package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// journalsName returns the name of this user's directory of journals. It begins with a dot, as no
// segment does, and lies beside the segments: each process that sees the segments sees it, in any
// container, and a restart of the machine removes both.
func journalsName() string { return ".omnibus-" + strconv.Itoa(os.Geteuid()) }

// openJournals opens the directory of journals, and creates it if it is missing.
func (d directory) openJournals() (directory, error) {
	const mode = 0o700
	if err := unix.Mkdirat(d.fd, journalsName(), mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return directory{}, spaceError(err)
	}
	fd, err := unix.Openat(d.fd, journalsName(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return directory{}, err
	}
	j := directory{fd, d.path + "/" + journalsName(), d.user}
	f, err := describeFD(fd)
	if err == nil && (int(f.owner) != d.user || f.mode&0o077 != 0) {
		err = fmt.Errorf("%w: %s is not this user's alone", connector.ErrUnavailable, j.path)
	}
	if err != nil {
		j.close()
		return directory{}, err
	}
	return j, nil
}

// removeJournals removes the directory, if it has no journal any more.
func (d directory) removeJournals() { _ = unix.Unlinkat(d.fd, journalsName(), unix.AT_REMOVEDIR) }

// openJournal makes a journal. It is locked before it has a name, so that no sweep takes it for a
// dead process's.
func (d directory) openJournal() (*journal, error) {
	const most = 16 // other transports that close and remove the directory
	for range most {
		journals, err := d.openJournals()
		if err != nil && !isMissing(err) {
			return nil, err
		}
		if err != nil {
			continue
		}
		j, err := journals.newJournal()
		if err == nil {
			faultpoint.Hit("segment-opened")
			return j, nil
		}
		journals.close()
		if !isMissing(err) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: %s is created and removed all the time", connector.ErrBusy, journalsName())
}

func (d directory) newJournal() (*journal, error) {
	fd, err := d.create()
	if err != nil {
		return nil, err
	}
	f, err := describeFD(fd)
	name := fmt.Sprintf("%d-%d", os.Getpid(), f.inode)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = d.link(fd, name)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &journal{dir: d, name: name, fd: fd}, nil
}

// sweep removes the files that dead processes have left. Files that a living process has locked are
// left for the next sweep, with their journal, and the error is [connector.ErrBusy].
func (j *journal) sweep(dir directory, log *slog.Logger) error {
	names, err := os.ReadDir(j.dir.path)
	if err != nil {
		return err
	}
	var errs []error
	var spares []string
	for _, n := range names {
		switch name := n.Name(); {
		case name == j.name || strings.HasPrefix(name, notePrefix):
		case strings.HasPrefix(name, sparePrefix):
			spares = append(spares, name)
		default:
			errs = append(errs, j.sweepOne(dir, name, log))
		}
	}
	for _, name := range spares {
		if _, err := j.dir.lookup(journalOf(name)); isMissing(err) {
			_ = j.dir.unlink(name)
		}
	}
	return errors.Join(errs...)
}

// orphan opens a journal or a note whose process is dead. The lock shows it: the kernel releases it
// with the process, whereas a process number may be used again. The file of a living process is
// [connector.ErrBusy]; one that another process has swept is fs.ErrNotExist.
func (d directory) orphan(name string) (fd int, f file, err error) {
	fd, f, err = d.open(name, unix.O_RDWR)
	if err != nil {
		return -1, f, err
	}
	if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		err = errHeld
	} else if now, lookErr := d.lookup(name); lookErr != nil || now.identity != f.identity {
		err = fs.ErrNotExist
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, f, err
	}
	return fd, f, nil
}

// sweepOne sweeps a journal if its process is dead.
func (j *journal) sweepOne(dir directory, name string, log *slog.Logger) error {
	fd, f, err := j.dir.orphan(name)
	if isMissing(err) || errors.Is(err, errHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	records, err := readRecords(fd, f.size)
	if err != nil {
		return err
	}
	values := 0
	for _, r := range records {
		if dir.exists(r) {
			values++
		}
		err = errors.Join(err, dir.removeRecorded(r))
		faultpoint.Hit("segment-swept")
	}
	if err != nil {
		return err
	}
	if values > 0 {
		log.Info("removed the values of a dead process", "journal", name, "values", values)
	}
	return j.dir.unlink(name)
}

// readRecords reads a journal, some rows at a time.
func readRecords(fd int, size int64) ([]record, error) {
	const piece = 64 * rowBytes
	var records []record
	b := make([]byte, piece)
	for from := int64(0); from < size; from += piece {
		n, err := unix.Pread(fd, b, from)
		if err != nil {
			return nil, err
		}
		for row := range slices.Chunk(b[:n], rowBytes) {
			if r, ok := parseRecord(row); ok {
				records = append(records, r)
			}
		}
	}
	return records, nil
}
