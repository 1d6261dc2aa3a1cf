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

// rowBytes hold one record: four numbers and a quoted name.
const rowBytes = 1024

// A purpose says what a record is for.
type purpose rune

const (
	putting purpose = 'p' // the segment and its lock are the writer's to remove
	getting purpose = 'g' // the lock is, if the segment is gone
)

// record says what would be left if this process died now. It is written before
// anything has a name, and names things so that nobody else's is taken for them.
type record struct {
	purpose purpose
	name    string
	segment identity
	lock    identity
}

// encode makes the text of a record, which is readable for people.
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

// parseRecord reads a row. One that is empty, or was never finished, has none.
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

// journal is a file of rows, each empty or with a record. It is locked while its
// process lives.
type journal struct {
	dir  directory
	name string
	fd   int

	mu   sync.Mutex
	free []int
	rows int
}

// add writes a record to a row of its own.
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

// clear empties a row, for the next record.
func (j *journal) clear(row int) {
	// A row that cannot be emptied names something that is gone: nothing comes of it.
	_ = j.write(row, []byte("\n"))
	j.release(row)
}

// release leaves a row to the next record, as it is: what it names is gone, and nothing
// else is ever taken for that.
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

// close gives the journal up: done says that nothing in it is left to do. One that is
// not done is swept by whoever opens next.
func (j *journal) close(done bool) {
	if done {
		_ = j.dir.unlink(j.name)
	}
	_ = unix.Close(j.fd)
	j.dir.close()
}
