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

	// spareLooks is how many are looked at with each put: more than one, so that they
	// are found sooner than new ones are made.
	spareLooks = 2
	// maxRefused is how often no lease is given until it is believed that none ever is: not
	// before Linux 5.3, where a second name is taken for somebody who has the file.
	maxRefused = 256
	// spareRest is after how long one that is not used again is let go.
	spareRest = 5 * time.Second
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
type body struct {
	fd    int
	id    identity
	size  int64
	spare string    // its second name; empty if it is for one value alone
	room  int64     // that it is counted with
	value *entry    // that it was last given
	used  time.Time // last
}

// spares are files that are used again: what is dear about a new one is its memory,
// which the system has to find, and to take back. A file has a second name, among the
// journals, so that it stays when whoever gets its value removes the first. Nobody has
// the value any more once the second name is all that it has, and nobody has it open.
type spares struct {
	dir    directory // of the journals
	prefix string
	limit  int64 // of bytes; 0: no file is used again

	refused atomic.Int32 // how often the kernel gave no lease, until it gave one

	mu    sync.Mutex
	made  int // so far
	count int
	bytes int64
	given []*body // those with a value: the next to be looked at first
	free  []*body // the others: what was used last is last
	rest  *time.Timer
}

// newSpares returns the spares of a transport with this journal. What is put to last has
// none: it outlives the transport.
func newSpares(dir directory, j *journal, lasting bool) *spares {
	p := &spares{dir: j.dir, prefix: sparePrefix + j.name + "-"}
	if !lasting {
		p.limit = maxSpareBytes
	}
	if whole, _ := dir.room(); whole > 0 {
		p.limit = min(p.limit, whole/spareShare)
	}
	return p
}

// newBody makes a file for one value.
func newBody(dir directory) (*body, error) {
	fd, err := dir.create()
	if err != nil {
		return nil, err
	}
	f, err := described(fd)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &body{fd: fd, id: f.identity}, nil
}

// body returns a file that nobody has: one that is used again, or a new one.
func (p *spares) body(dir directory, size int64) (b *body, err error) {
	err = p.orElse(func() error {
		b, err = p.take(dir, size)
		return err
	})
	return b, err
}

// take does so once. A new file is used again, too, unless there are as many of these as
// may be, or it is large.
func (p *spares) take(dir directory, size int64) (*body, error) {
	p.look()
	room := roundUp(size)
	p.mu.Lock()
	b, number, surplus := p.choose(room)
	p.mu.Unlock()
	p.remove(surplus...)
	if b != nil {
		return b, nil
	}
	b, err := newBody(dir)
	switch {
	case number == 0:
	case err == nil && p.name(b, number):
		b.room = room
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
func (p *spares) choose(room int64) (b *body, number int, surplus []*body) {
	for _, f := range slices.Backward(p.free) {
		if b == nil || max(f.room-room, room-f.room) < max(b.room-room, room-b.room) {
			b = f
		}
	}
	has := int64(0)
	switch {
	case b != nil && (p.count == maxSpares || max(b.room, room) <= 2*min(b.room, room)):
		has = b.room
	case p.count < maxSpares:
		b = nil
	default:
		return nil, 0, nil
	}
	over := p.bytes + room - has - p.limit
	for _, f := range p.free {
		if over > 0 && f != b {
			over -= f.room
			surplus = append(surplus, f)
		}
	}
	if over > 0 {
		return nil, 0, nil
	}
	p.free = slices.DeleteFunc(p.free, func(f *body) bool { return f == b || slices.Contains(surplus, f) })
	p.bytes += room - has
	if b != nil {
		b.room = room
		return b, 0, surplus
	}
	p.count++
	p.made++
	return nil, p.made, surplus
}

// name gives a file its second name, unless room is getting scarce. One that has none is for
// one value alone.
func (p *spares) name(b *body, number int) bool {
	if whole, left := p.dir.room(); left < whole/2 {
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

// give says that a body has a value now. One that is for one value alone is closed.
func (p *spares) give(b *body, e *entry) {
	if b.spare == "" {
		_ = unix.Close(b.fd)
		return
	}
	b.value, b.used = e, e.at
	p.mu.Lock()
	defer p.mu.Unlock()
	p.given = append(p.given, b)
	if p.rest == nil {
		p.rest = time.AfterFunc(spareRest, p.rested)
	}
}

// look looks whether those that were given longest ago are free.
func (p *spares) look() {
	for range spareLooks {
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
			b.value.got.Store(true)
			b.value = nil
		}
		p.mu.Lock()
		switch {
		case free:
			p.free = append(p.free, b)
		case err == nil:
			p.given = append(p.given, b)
		case !missing(err):
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
func (p *spares) isFree(b *body) (bool, error) {
	f, err := p.dir.lookup(b.spare)
	if err == nil && f.identity != b.id {
		err = fs.ErrNotExist
	}
	if err != nil || f.names > 1 {
		return false, err
	}
	_, err = unix.FcntlInt(uintptr(b.fd), unix.F_SETLEASE, unix.F_WRLCK)
	if errors.Is(err, unix.EAGAIN) && p.refused.Add(1) < maxRefused {
		return false, nil
	}
	if err == nil {
		p.refused.Store(math.MinInt32)
		_, err = unix.FcntlInt(uintptr(b.fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	b.size = f.size // whoever had it may have changed that
	return err == nil, err
}

// remove lets go of files. A value in one lives on under the first name, until it is got.
func (p *spares) remove(bodies ...*body) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, b := range bodies {
		p.drop(b)
	}
}

// drop lets go of a file, under mu: once that is free after close, nobody is at it.
func (p *spares) drop(b *body) {
	if b.spare != "" {
		_ = p.dir.unlink(b.spare)
		p.count--
		p.bytes -= b.room
	}
	_ = unix.Close(b.fd)
}

// orElse does what may find no room, and once more when it was told so and something
// could go.
func (p *spares) orElse(do func() error) error {
	err := do()
	if errors.Is(err, connector.ErrFull) && p.spend() {
		return do()
	}
	return err
}

// spend lets go of all of them, and says whether there were any. Those that had a value when
// they were looked at last may be free by now, and each of them has a descriptor.
func (p *spares) spend() bool {
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

// rested lets go of what was not used for a while, and comes again while there is more.
func (p *spares) rested() {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	rests := func(b *body) bool {
		old := now.Sub(b.used) >= spareRest
		if old {
			p.drop(b)
		}
		return old
	}
	p.given = slices.DeleteFunc(p.given, rests)
	p.free = slices.DeleteFunc(p.free, rests)
	if p.rest != nil && p.count > 0 {
		p.rest.Reset(spareRest)
	} else {
		p.rest = nil
	}
}

// close lets go of all of them. Nobody puts any more.
func (p *spares) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rest != nil {
		p.rest.Stop()
		p.rest = nil
	}
	p.dropAll()
}
