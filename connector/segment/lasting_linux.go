package segment

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

// notePrefix begins the names of notes, which lie among the journals.
const notePrefix = "lasting-"

// note describes a lasting value, in a file of its own: the value outlives its process and its
// journal.
type note struct {
	record
	key   string
	until int64 // in nanoseconds of Unix time; 0 is for ever
}

// maxNote is more than a note with the longest quoted names has.
const maxNote = 8 << 10

// encode returns the text of a note. Its first line is no record, so a version that knows only
// journals does not take the value for a dead process's.
func (n note) encode() []byte {
	line := "l " + strconv.FormatInt(n.until, 10) + " " + strconv.Quote(n.key) + "\n"
	return append([]byte(line), n.record.encode()...)
}

func parseNote(text []byte) (n note, ok bool) {
	line, rest, _ := strings.Cut(string(text), "\n")
	if _, err := fmt.Sscanf(line, "l %d %q", &n.until, &n.key); err != nil {
		return n, false
	}
	n.record, ok = parseRecord([]byte(rest))
	return n, ok && n.until >= 0
}

// noteFile is a note that is being written. It is locked, so that a sweep does not remove it before
// its value exists.
type noteFile struct {
	dir  directory
	name string
	fd   int
}

// writeNote writes the note of a lasting value. Other values have their journal alone, and it
// returns nil.
func (t *Transport) writeNote(e *entry) (*noteFile, error) {
	if !t.opts.Lasting {
		return nil, nil
	}
	n := note{record: e.record, key: e.key}
	if t.opts.TTL > 0 {
		now := time.Now().UnixNano()
		n.until = now + min(int64(t.opts.TTL), math.MaxInt64-now) // int64 nanoseconds end in the year 2262
	}
	fd, err := t.journal.dir.create()
	if err != nil {
		return nil, err
	}
	file := &noteFile{dir: t.journal.dir, fd: fd}
	if err = file.write(n); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("write the note of a lasting value: %w", spaceError(err))
	}
	faultpoint.Hit("segment-put-noted")
	return file, nil
}

func (f *noteFile) write(n note) error {
	own, err := describeFD(f.fd)
	if err != nil {
		return err
	}
	f.name = notePrefix + strconv.FormatUint(own.inode, 10)
	if err := unix.Flock(f.fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	if _, err := unix.Pwrite(f.fd, n.encode(), 0); err != nil {
		return err
	}
	return f.dir.link(f.fd, f.name)
}

// close ends the writing of a note, which stays if the value does.
func (f *noteFile) close(stays bool) {
	if f == nil {
		return
	}
	if !stays {
		_ = f.dir.unlink(f.name)
	}
	_ = unix.Close(f.fd)
}

// notes calls do for each lasting value that exists, and removes the notes of values that do not
// exist or that do has removed. A note that another process is writing or visiting is
// [connector.ErrBusy].
func (j *journal) notes(dir directory, do func(note) (removed bool, err error)) error {
	names, err := os.ReadDir(j.dir.path)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range names {
		if strings.HasPrefix(n.Name(), notePrefix) {
			errs = append(errs, j.visitNote(dir, n.Name(), do))
		}
	}
	return errors.Join(errs...)
}

func (j *journal) visitNote(dir directory, name string, do func(note) (removed bool, err error)) error {
	fd, _, err := j.dir.orphan(name)
	if isMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	text := make([]byte, maxNote)
	size, err := unix.Pread(fd, text, 0)
	if err != nil {
		return err
	}
	n, ok := parseNote(text[:size])
	if ok && dir.exists(n.record) {
		if removed, err := do(n); err != nil || !removed {
			return err
		}
	}
	return j.dir.unlink(name)
}

// sweepNotes removes expired lasting values, and returns the time when the next one expires. Values
// that another process has locked are left for the next sweep.
func (j *journal) sweepNotes(dir directory, log *slog.Logger) (next time.Time, err error) {
	now := time.Now()
	err = j.notes(dir, func(n note) (bool, error) {
		over := time.Unix(0, n.until)
		if n.until == 0 || now.Before(over) {
			if n.until > 0 && (next.IsZero() || over.Before(next)) {
				next = over
			}
			return false, nil
		}
		if err := dir.removeRecorded(n.record); err != nil {
			return false, err
		}
		log.Warn("no reader came for a lasting value", slog.String("key", n.key))
		return true, nil
	})
	if errors.Is(err, connector.ErrBusy) {
		return now, nil
	}
	return next, err
}

// removeLasting removes the lasting values of all processes under a key.
func (t *Transport) removeLasting(key string) error {
	err := t.journal.notes(t.dir, func(n note) (bool, error) {
		if n.key != key {
			return false, nil
		}
		err := t.dir.removeRecorded(n.record)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return t.dir.remove(key)
}

// sweepLasting sweeps expired lasting values, again and again while the transport is open.
func (t *Transport) sweepLasting() {
	if t.beginOperation() != nil {
		return
	}
	defer t.endOperation()
	next, err := t.journal.sweepNotes(t.dir, t.opts.Log)
	again := t.opts.TTL
	if !next.IsZero() {
		again = min(again, time.Until(next))
	}
	if err != nil {
		t.opts.Log.Warn("lasting values stay", "in", t.opts.Dir, "err", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sweeper.Reset(max(again, maxPause))
}
