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
	// maxSpares and maxSpareBytes bound the files that a transport uses again, and
	// their memory, with a value in them or without. Of a small directory each
	// transport gets only a part, and all together not much more than half of it.
	maxSpares     = 32
	maxSpareBytes = 64 << 20
	spareShare    = 8

	// spareChecks is how many are looked at with each put: more than one, so that they
	// are found sooner than new ones are made.
	spareChecks = 2
	// maxLeaseRefusals is how often no lease is given until it is believed that none ever is: not
	// before Linux 5.3, where a second name is taken for somebody who has the file.
	maxLeaseRefusals = 256
	// spareIdle is after how long one that is not used again is let go.
	spareIdle = 5 * time.Second
)

// sparePrefix begins the second names of files. The name of the journal follows, and a
// number.
const sparePrefix = "spare-"

// journalOf returns the name of the journal beside which a spare is used.
func journalOf(spare string) string {
	name := strings.TrimPrefix(spare, sparePrefix)
	return name[:max(strings.LastIndexByte(name, '-'), 0)]
}

// A body is the file of a value.
type valueFile struct {
	fd           int
	id           identity
	size         int64
	spare        string    // its second name; empty if it is for one value alone
	countedBytes int64     // that it is counted with
	value        *entry    // that it was last given
	used         time.Time // last
}

// spares are files that are used again: what is dear about a new one is its memory,
// which the system has to find, and to take back. A file has a second name, among the
// journals, so that it stays when whoever gets its value removes the first. Nobody has
// the value any more once the second name is all that it has, and nobody has it open.
type spares struct {
	dir    directory // of the journals
	prefix string
	limit  int64 // of bytes; 0: no file is used again

	leaseRefusals atomic.Int32 // how often the kernel gave no lease, until it gave one

	mu        sync.Mutex
	created   int // so far
	count     int
	bytes     int64
	given     []*valueFile // those with a value: the next to be looked at first
	free      []*valueFile // the others: what was used last is last
	idleTimer *time.Timer
}

// newSpares returns the spares of a transport with this journal. What is put to last has
// none: it outlives the transport.
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

// get returns a file that nobody has: one that is used again, or a new one.
func (p *spares) get(dir directory, size int64) (b *valueFile, err error) {
	err = p.retryWithoutSpares(func() error {
		b, err = p.getOnce(dir, size)
		return err
	})
	return b, err
}

// getOnce does so once. A new file is used again, too, unless there are as many of these as
// may be, or it is large.
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

// choose finds a free file for so many bytes, or a number for a new one. Free ones that
// have to go for that are surplus.
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

// name gives a file its second name, unless room is getting scarce. One that has none is for
// one value alone.
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

// addGiven says that a body has a value now. One that is for one value alone is closed.
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

// checkGiven looks whether those that were given longest ago are free.
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
			p.limit = 0 // this kernel has no leases, or not such
		}
		p.mu.Unlock()
		if err != nil {
			p.remove(b)
		}
	}
}

// isFree says whether nobody has the value of a body any more. A file can be opened until
// its name is gone, so that is looked at first. Then the kernel is asked for a lease, which
// it gives to nobody while others have the file open, or mapped. (That somebody opens it by
// its second name meanwhile is told by SIGIO, which Go ignores.)
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
	b.size = f.size // whoever had it may have changed that
	return err == nil, err
}

// remove lets go of files. A value in one lives on under the first name, until it is got.
func (p *spares) remove(bodies ...*valueFile) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range bodies {
		p.drop(b)
	}
}

// drop lets go of a file, under mu: once that is free after close, nobody is at it.
func (p *spares) drop(b *valueFile) {
	if b.spare != "" {
		_ = p.dir.unlink(b.spare)
		p.count--
		p.bytes -= b.countedBytes
	}
	_ = unix.Close(b.fd)
}

// retryWithoutSpares does what may find no room, and once more when it was told so and something
// could go.
func (p *spares) retryWithoutSpares(do func() error) error {
	err := do()
	if errors.Is(err, connector.ErrFull) && p.dropForSpace() {
		return do()
	}
	return err
}

// dropForSpace lets go of all of them, and says whether there were any. Those that had a value when
// they were looked at last may be free by now, and each of them has a descriptor.
func (p *spares) dropForSpace() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	some := len(p.given)+len(p.free) > 0
	p.dropAll()
	return some
}

// dropAll lets go of all of them, under mu.
func (p *spares) dropAll() {
	for _, b := range slices.Concat(p.given, p.free) {
		p.drop(b)
	}
	p.given, p.free = nil, nil
}

// dropIdle lets go of what was not used for a while, and comes again while there is more.
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

// close lets go of all of them. Nobody puts any more.
func (p *spares) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idleTimer != nil {
		p.idleTimer.Stop()
		p.idleTimer = nil
	}
	p.dropAll()
}
