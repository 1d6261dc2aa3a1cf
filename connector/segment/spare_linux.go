package segment

import (
	"errors"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
)

const (
	// maxSpares and maxSpareBytes bound the files that a transport reuses, and their memory, with
	// or without a value. In a small directory each transport gets a share, and all together not
	// much more than half of it.
	maxSpares     = 32
	maxSpareBytes = 64 << 20
	spareShare    = 8

	// spareChecks is how many spares each put checks: more than one, so that free spares are found
	// sooner than new ones are created.
	spareChecks = 2
	// maxLeaseRefusals is the number of refused leases after which the kernel is taken to grant
	// none: before Linux 5.3, a second name counts as another user of the file.
	maxLeaseRefusals = 256
	// spareIdle is the time after which an unused spare is dropped.
	spareIdle = 5 * time.Second
)

// sparePrefix begins the second names of files. The journal's name and a number follow.
const sparePrefix = "spare-"

// journalOf returns the name of the journal that a spare belongs to.
func journalOf(spare string) string {
	name := strings.TrimPrefix(spare, sparePrefix)
	return name[:max(strings.LastIndexByte(name, '-'), 0)]
}

// A valueFile is the file of a value.
type valueFile struct {
	fd           int
	id           identity
	size         int64
	spare        string    // its second name; empty: the file is for one value alone
	countedBytes int64     // bytes that it counts in spares.bytes
	value        *entry    // the last value
	used         time.Time // time of the last put
}

// spares are files that are reused, because the kernel's work for a new file's memory is expensive.
// A spare has a second name, among the journals, so that the file stays when the reader removes the
// first name. The file is free once the second name is its only one and no process has it open.
type spares struct {
	dir    directory // the directory of the journals
	prefix string
	limit  int64 // in bytes; 0: files are not reused

	leaseRefusals atomic.Int32 // refused leases, until one is granted

	mu        sync.Mutex
	created   int // so far
	count     int
	bytes     int64
	given     []*valueFile // spares with a value; the first is checked next
	free      []*valueFile // free spares; the last used is last
	idleTimer *time.Timer
}

// newSpares returns the spares of a transport with this journal. A lasting transport has none: its
// values outlive it.
func newSpares(dir directory, j *journal, lasting bool) *spares {
	p := &spares{dir: j.dir, prefix: sparePrefix + j.name + "-"}
	if !lasting {
		p.limit = maxSpareBytes
	}
	if whole, _ := dir.space(); whole > 0 {
		p.limit = min(p.limit, whole/spareShare)
	}
	return p
}

// newValueFile makes a file for one value.
func newValueFile(dir directory) (*valueFile, error) {
	fd, err := dir.create()
	if err != nil {
		return nil, err
	}
	f, err := describeFD(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &valueFile{fd: fd, id: f.identity}, nil
}

// get returns a free file: a spare, or a new one.
func (p *spares) get(dir directory, size int64) (b *valueFile, err error) {
	err = p.retryWithoutSpares(func() error {
		b, err = p.getOnce(dir, size)
		return err
	})
	return b, err
}

// getOnce tries get once. A new file becomes a spare too, unless it is large or there are
// maxSpares.
func (p *spares) getOnce(dir directory, size int64) (*valueFile, error) {
	p.checkGiven()
	room := roundUp(size)
	p.mu.Lock()
	b, number, surplus := p.choose(room)
	p.mu.Unlock()
	p.remove(surplus...)
	if b != nil {
		return b, nil
	}
	b, err := newValueFile(dir)
	switch {
	case number == 0:
	case err == nil && p.name(b, number):
		b.countedBytes = room
	default:
		p.mu.Lock()
		p.count--
		p.bytes -= room
		p.mu.Unlock()
	}
	return b, err
}

// choose returns a free spare for a value of the given bytes, or a number for a new one. The
// surplus spares have to be dropped for that.
func (p *spares) choose(room int64) (b *valueFile, number int, surplus []*valueFile) {
	for _, f := range slices.Backward(p.free) {
		if b == nil || max(f.countedBytes-room, room-f.countedBytes) < max(b.countedBytes-room, room-b.countedBytes) {
			b = f
		}
	}
	has := int64(0)
	switch {
	case b != nil && (p.count == maxSpares || max(b.countedBytes, room) <= 2*min(b.countedBytes, room)):
		has = b.countedBytes
	case p.count < maxSpares:
		b = nil
	default:
		return nil, 0, nil
	}
	over := p.bytes + room - has - p.limit
	for _, f := range p.free {
		if over > 0 && f != b {
			over -= f.countedBytes
			surplus = append(surplus, f)
		}
	}
	if over > 0 {
		return nil, 0, nil
	}
	p.free = slices.DeleteFunc(p.free, func(f *valueFile) bool { return f == b || slices.Contains(surplus, f) })
	p.bytes += room - has
	if b != nil {
		b.countedBytes = room
		return b, 0, surplus
	}
	p.count++
	p.created++
	return nil, p.created, surplus
}

// name gives a file its second name, unless the free space is small. A file without one is for one
// value alone.
func (p *spares) name(b *valueFile, number int) bool {
	if whole, left := p.dir.space(); left < whole/2 {
		return false
	}
	spare := p.prefix + strconv.Itoa(number)
	if p.dir.link(b.fd, spare) != nil {
		return false
	}
	b.spare = spare
	faultpoint.Hit("segment-spare-named")
	return true
}

// addGiven records the value of a file, or closes a file that is for one value alone.
func (p *spares) addGiven(b *valueFile, e *entry) {
	if b.spare == "" {
		_ = unix.Close(b.fd)
		return
	}
	b.value, b.used = e, e.putAt
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given = append(p.given, b)
	if p.idleTimer == nil {
		p.idleTimer = time.AfterFunc(spareIdle, p.dropIdle)
	}
}

// checkGiven checks whether the spares with the oldest values are free.
func (p *spares) checkGiven() {
	for range spareChecks {
		p.mu.Lock()
		if len(p.given) == 0 {
			p.mu.Unlock()
			return
		}
		b := p.given[0]
		p.given = p.given[1:]
		p.mu.Unlock()

		free, err := p.isFree(b)
		if free {
			b.value.fileFreed.Store(true)
			b.value = nil
		}
		p.mu.Lock()
		switch {
		case free:
			p.free = append(p.free, b)
		case err == nil:
			p.given = append(p.given, b)
		case !isMissing(err):
			p.limit = 0 // this kernel has no usable leases
		}
		p.mu.Unlock()
		if err != nil {
			p.remove(b)
		}
	}
}

// isFree reports whether no process can read the value of a file any more. A file can be opened
// until its first name is gone, so the names are checked first. Then the kernel is asked for a
// lease, which it refuses while other processes have the file open or mapped. (If a process opens
// the file by its second name meanwhile, the kernel sends SIGIO, which Go ignores.)
func (p *spares) isFree(b *valueFile) (bool, error) {
	f, err := p.dir.lookup(b.spare)
	if err == nil && f.identity != b.id {
		err = fs.ErrNotExist
	}
	if err != nil || f.links > 1 {
		return false, err
	}
	_, err = unix.FcntlInt(uintptr(b.fd), unix.F_SETLEASE, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) && p.leaseRefusals.Add(1) < maxLeaseRefusals {
		return false, nil
	}
	if err == nil {
		p.leaseRefusals.Store(math.MinInt32)
		_, err = unix.FcntlInt(uintptr(b.fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	b.size = f.size // its last reader may have resized it
	return err == nil, err
}

// remove drops files. A value in one stays under the first name until it is got.
func (p *spares) remove(bodies ...*valueFile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range bodies {
		p.drop(b)
	}
}

// drop drops a file, with mu held, so that no drop runs any more when close has returned.
func (p *spares) drop(b *valueFile) {
	if b.spare != "" {
		_ = p.dir.unlink(b.spare)
		p.count--
		p.bytes -= b.countedBytes
	}
	_ = unix.Close(b.fd)
}

// retryWithoutSpares calls do, and if do fails with ErrFull and there were spares to drop, calls it
// once more.
func (p *spares) retryWithoutSpares(do func() error) error {
	err := do()
	if errors.Is(err, connector.ErrFull) && p.dropForSpace() {
		return do()
	}
	return err
}

// dropForSpace drops all spares, and reports whether there were any. Spares with a value may be
// free by now, and each has a descriptor.
func (p *spares) dropForSpace() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	some := len(p.given)+len(p.free) > 0
	p.dropAll()
	return some
}

// dropAll drops all spares, with mu held.
func (p *spares) dropAll() {
	for _, b := range slices.Concat(p.given, p.free) {
		p.drop(b)
	}
	p.given, p.free = nil, nil
}

// dropIdle drops the spares that were not used for spareIdle, and sets the timer again while there
// are more.
func (p *spares) dropIdle() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	rests := func(b *valueFile) bool {
		old := now.Sub(b.used) >= spareIdle
		if old {
			p.drop(b)
		}
		return old
	}
	p.given = slices.DeleteFunc(p.given, rests)
	p.free = slices.DeleteFunc(p.free, rests)
	if p.idleTimer != nil && p.count > 0 {
		p.idleTimer.Reset(spareIdle)
	} else {
		p.idleTimer = nil
	}
}

// close drops all spares. No put runs any more.
func (p *spares) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idleTimer != nil {
		p.idleTimer.Stop()
		p.idleTimer = nil
	}
	p.dropAll()
}
