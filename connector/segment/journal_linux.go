package segment

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// rowBytes is the size of a row, with one record: four numbers and a quoted name.
const rowBytes = 1024

// A purpose is the reason for a record.
type purpose rune

const (
	putting purpose = 'p' // after the writer's death, the segment and its lock are to be removed
	getting purpose = 'g' // after the reader's death, the lock is to be removed if the segment is gone
)

// record names the files that this process would leave if it died now. It is written before the
// files have names, and identifies them so that no other process's file is taken for them.
type record struct {
	purpose purpose
	name    string
	segment identity
	lock    identity
}

// encode returns the record as readable text.
func (r record) encode() []byte {
	const usual = 128
	b := append(make([]byte, 0, usual), string(r.purpose)...)
	for _, id := range []identity{r.segment, r.lock} {
		b = strconv.AppendUint(append(b, ' '), id.inode, 10)
		b = strconv.AppendInt(append(b, ' '), id.born, 10)
	}
	b = strconv.AppendQuote(append(b, ' '), r.name)
	return append(b, '\n')
}

// parseRecord reads a row. An empty row, or an incomplete one, has no record.
func parseRecord(row []byte) (record, bool) {
	line, _, whole := strings.Cut(string(row), "\n")
	const words = 6
	w := strings.SplitN(line, " ", words)
	if !whole || len(w) != words {
		return record{}, false
	}
	var r record
	for _, p := range []purpose{putting, getting} {
		if w[0] == string(p) {
			r.purpose = p
		}
	}
	var errs [5]error
	r.segment.inode, errs[0] = strconv.ParseUint(w[1], 10, 64)
	r.segment.born, errs[1] = strconv.ParseInt(w[2], 10, 64)
	r.lock.inode, errs[2] = strconv.ParseUint(w[3], 10, 64)
	r.lock.born, errs[3] = strconv.ParseInt(w[4], 10, 64)
	r.name, errs[4] = strconv.Unquote(w[5])
	bad := errors.Join(errs[:]...) != nil || r.purpose == 0
	return r, !bad && errors.Join(connector.CheckKey(r.name), checkName(r.name)) == nil
}

// journal is a file of rows, each empty or with a record. It is locked while its process lives.
type journal struct {
	dir  directory
	name string
	fd   int

	mu   sync.Mutex
	free []int
	rows int
}

// add writes a record to a free row.
func (j *journal) add(r record) (row int, err error) {
	j.mu.Lock()
	if n := len(j.free); n > 0 {
		row = j.free[n-1]
		j.free = j.free[:n-1]
	} else {
		row = j.rows
		j.rows++
	}
	j.mu.Unlock()
	if err := j.write(row, r.encode()); err != nil {
		j.clear(row)
		return 0, err
	}
	return row, nil
}

// clear empties a row and frees it.
func (j *journal) clear(row int) {
	// If the write fails, the row names files that do not exist, and has no effect.
	_ = j.write(row, []byte("\n"))
	j.release(row)
}

// release frees a row without emptying it: its files are gone, and no other file matches the
// record.
func (j *journal) release(row int) {
	j.mu.Lock()
	j.free = append(j.free, row)
	j.mu.Unlock()
}

func (j *journal) write(row int, text []byte) error {
	if _, err := unix.Pwrite(j.fd, text, int64(row)*rowBytes); err != nil {
		return fmt.Errorf("write the journal: %w", spaceError(err))
	}
	return nil
}

// close closes the journal, and removes it if done: its records need no more work. The next
// transport that is opened sweeps a journal that was not done.
func (j *journal) close(done bool) {
	if done {
		_ = j.dir.unlink(j.name)
	}
	_ = unix.Close(j.fd)
	j.dir.close()
}
