package bus

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/peer"
)

// What the directory takes.
const (
	maxPublishedBy    = 1024    // names of one process
	maxPublished      = 1 << 14 // names of all together
	publishedShare    = 4       // one in so many of the descriptors that the host may open
	maxPublishedBytes = 1 << 46 // as large as a store may be
)

// directory is the host's table of descriptors under names, those of clients
// among them. It maps nothing: it keeps the descriptors and passes them on.
type directory struct {
	most  int    // names
	found owners // of what this process has found

	mu         sync.Mutex // comes before a sender's
	names      map[lane.Name]*published
	publishers map[*session]*publisher // nil: this process
	last       uint32                  // number of the last one that is no nil
	self       int                     // a pidfd of this process; -1: not opened
	closed     bool
}

// published is a descriptor with a name.
type published struct {
	fd        int
	sizeBytes int64
	by        *publisher
}

// publisher is a process that has published something.
type publisher struct {
	number uint32   // never another's; 0: this process
	sess   *session // nil: this process
	names  map[lane.Name]struct{}
}

func newDirectory() *directory {
	return &directory{
		most: min(maxPublished, limits.Files()/publishedShare), self: -1,
		names: make(map[lane.Name]*published), publishers: make(map[*session]*publisher),
	}
}

// checkSize looks at the size of what is behind a descriptor.
func checkSize(sizeBytes int64) error {
	if sizeBytes < 1 || sizeBytes > maxPublishedBytes {
		return fmt.Errorf("%w: a descriptor of %d bytes: use 1 to %d", cudaipc.ErrInvalid, sizeBytes, int64(maxPublishedBytes))
	}
	return nil
}

// publish puts a descriptor under a name. It owns the descriptor, also if it fails.
func (d *directory) publish(s *session, name lane.Name, fd int, sizeBytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropOver(name)
	by := d.publishers[s]
	err := checkSize(sizeBytes)
	switch {
	case err != nil:
	case d.closed:
		err = fmt.Errorf("%w: %w", lane.ErrUnavailable, ErrClosed)
	case d.names[name] != nil:
		err = fmt.Errorf("%w: it is published by %s", lane.ErrPublished, d.names[name].by.describe())
	case len(d.names) >= d.most:
		err = fmt.Errorf("%w: it has %d names, and the host may have no more (raise its `ulimit -n`)", lane.ErrFull, len(d.names))
	case by != nil && len(by.names) >= maxPublishedBy:
		err = fmt.Errorf("%w: this process has published %d names, and no more may be", lane.ErrFull, len(by.names))
	}
	if err != nil {
		peer.CloseAll([]int{fd})
		return err
	}
	if by == nil {
		by = &publisher{sess: s, names: make(map[lane.Name]struct{})}
		if s != nil {
			d.last++
			by.number = d.last
		}
		d.publishers[s] = by
	}
	by.names[name] = struct{}{}
	d.names[name] = &published{fd: fd, sizeBytes: sizeBytes, by: by}
	return nil
}

// withdraw takes back what a process has published under a name.
func (d *directory) withdraw(s *session, name lane.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.names[name]; p != nil && p.by.sess == s {
		d.remove(name, p)
	}
}

// remove, with mu held, forgets a name.
func (d *directory) remove(name lane.Name, p *published) {
	peer.CloseAll([]int{p.fd})
	delete(d.names, name)
	delete(p.by.names, name)
}

// leave takes back all that a process has published.
func (d *directory) leave(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropAll(d.publishers[s])
	delete(d.publishers, s)
}

// dropAll, with mu held, forgets all names of a process, if it has any.
func (d *directory) dropAll(by *publisher) {
	if by == nil {
		return
	}
	for name := range by.names {
		d.remove(name, d.names[name])
	}
}

// dropOver, with mu held, forgets what whoever has the name has published, if it is
// dead or has hung up. The kernel is asked, which knows before the session ends: what
// a process publishes when it has joined anew must not find its own names taken.
func (d *directory) dropOver(name lane.Name) {
	p := d.names[name]
	if p == nil || p.by.sess == nil {
		return
	}
	if s := p.by.sess; s.proc.Exited() || s.conn.HungUp() {
		d.dropAll(p.by)
	}
}

// lookup finds a descriptor, and has it used, with a pidfd of who published it,
// while neither is closed.
func (d *directory) lookup(name lane.Name, use func(p *published, pidfd int) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropOver(name)
	p := d.names[name]
	switch {
	case d.closed:
		return fmt.Errorf("%w: %w", lane.ErrUnavailable, ErrClosed)
	case p == nil:
		return notPublished(name)
	}
	pidfd, err := d.pidfd(p.by)
	if err != nil {
		return err
	}
	return use(p, pidfd)
}

func notPublished(name lane.Name) error {
	return fmt.Errorf("%w: number %d of the pool %x", lane.ErrNotPublished, name.Number, name.Pool)
}

// pidfd, with mu held, is that of a process that has published something.
func (d *directory) pidfd(by *publisher) (int, error) {
	if by.sess != nil {
		return by.sess.proc.FD(), nil
	}
	if d.self < 0 {
		fd, err := peer.Self()
		if err != nil {
			return -1, err
		}
		d.self = fd
	}
	return d.self, nil
}

// close forgets everything, once no client is left.
func (d *directory) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, by := range d.publishers {
		d.dropAll(by)
	}
	if d.self >= 0 {
		peer.CloseAll([]int{d.self})
	}
	d.self, d.closed = -1, true
	d.found.close()
}

// pid is the number of the process.
func (by *publisher) pid() int {
	if by.sess == nil {
		return os.Getpid()
	}
	return by.sess.proc.PID()
}

// describe names the process in errors.
func (by *publisher) describe() string {
	if by.sess == nil {
		return "the host"
	}
	return fmt.Sprintf("process %d", by.pid())
}

// Directory is where processes find each other's descriptors, for the process
// that hosts the bus: what it publishes is found by the processes that are
// attached, and what they publish by it (see [Node.Directory]). It ends with the
// bus, and fails with [lane.ErrUnavailable] then.
func (b *Bus) Directory() lane.Directory { return hostDirectory{b.directory} }

type hostDirectory struct{ directory *directory }

// Publish implements [lane.Directory].
func (h hostDirectory) Publish(ctx context.Context, name lane.Name, fd int, sizeBytes int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	own, err := ownDescriptor(fd)
	if err != nil {
		return err
	}
	return h.directory.publish(nil, name, own, sizeBytes)
}

// ownDescriptor duplicates a descriptor that is to be published.
func ownDescriptor(fd int) (int, error) {
	own, err := peer.Duplicate(fd)
	if err != nil {
		return -1, fmt.Errorf("%w: publish: %w", cudaipc.ErrInvalid, err)
	}
	return own, nil
}

// Withdraw implements [lane.Directory].
func (h hostDirectory) Withdraw(name lane.Name) { h.directory.withdraw(nil, name) }

// Find implements [lane.Directory].
func (h hostDirectory) Find(ctx context.Context, name lane.Name) (lane.Found, error) {
	if ctx.Err() != nil {
		return lane.Found{}, context.Cause(ctx)
	}
	found := lane.Found{FD: -1}
	err := h.directory.lookup(name, func(p *published, pidfd int) error {
		own, err := peer.Duplicate(pidfd)
		if err != nil {
			return err
		}
		if found.Owner, err = h.directory.found.watch(p.by.key(), own, p.by.pid()); err != nil {
			return err
		}
		found.FD, err = peer.Duplicate(p.fd)
		found.SizeBytes = p.sizeBytes
		return err
	})
	if err != nil {
		return lane.Found{}, err
	}
	return found, nil
}

// key is what the process is watched as in this one.
func (by *publisher) key() ownerKey { return ownerKey{number: by.number} }
