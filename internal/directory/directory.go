package directory

import (
	"context"
	"fmt"
	"os"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/process"
)

// Bounds of the directory.
const (
	maxPublishedBy    = 1024    // names of one process
	maxPublished      = 1 << 14 // names of all together
	publishedShare    = 4       // divisor of the descriptors that the host may open
	maxPublishedBytes = 1 << 46 // as large as a store may be
)

// Directory is the table of names. It is also the [lane.Directory] of this process.
type Directory struct {
	closedErr error   // the cause of errors after Close
	watches   Watches // of the processes whose names this process has found

	mu         lockorder.Mutex[lockorder.Directory] // taken before a sender's
	maxNames   int                                  // names
	names      map[lane.Name]*published
	publishers map[Process]*publisher // nil: this process
	lastNumber uint32                 // number of the last publisher other than this process
	self       int                    // a pidfd of this process; -1: not opened
	closed     bool
}

// Process is a client that publishes.
type Process interface {
	PID() int
	FD() int    // its pidfd
	Gone() bool // the process is dead, or has hung up
}

// published is a descriptor with a name.
type published struct {
	fd        int
	sizeBytes int64
	by        *publisher
}

// publisher is a process that has published names.
type publisher struct {
	number  uint32  // never another's; 0: this process
	process Process // nil: this process
	names   map[lane.Name]struct{}
}

// New returns an empty directory. After Close its errors match [lane.ErrUnavailable] and closedErr.
func New(closedErr error) *Directory {
	return &Directory{
		maxNames: min(maxPublished, limits.Files()/publishedShare), closedErr: closedErr, self: -1,
		names: make(map[lane.Name]*published), publishers: make(map[Process]*publisher),
	}
}

// SetMaxNames bounds the names of all processes together.
func (d *Directory) SetMaxNames(names int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.maxNames = names
}

// Len counts the names.
func (d *Directory) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.names)
}

// CheckSize checks the size of the memory of a descriptor.
func CheckSize(sizeBytes int64) error {
	if sizeBytes < 1 || sizeBytes > maxPublishedBytes {
		return fmt.Errorf("%w: a descriptor of %d bytes: use 1 to %d", cudaipc.ErrInvalid, sizeBytes, int64(maxPublishedBytes))
	}
	return nil
}

// DuplicateFD duplicates a descriptor for PublishBy.
func DuplicateFD(fd int) (int, error) {
	own, err := process.Duplicate(fd)
	if err != nil {
		return -1, fmt.Errorf("%w: publish: %w", cudaipc.ErrInvalid, err)
	}
	return own, nil
}

// PublishBy publishes a descriptor of a process under a name; nil is this process. It owns the
// descriptor, even if it fails.
func (d *Directory) PublishBy(of Process, name lane.Name, fd int, sizeBytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropIfGone(name)
	by := d.publishers[of]
	err := CheckSize(sizeBytes)
	switch {
	case err != nil:
	case d.closed:
		err = d.unavailable()
	case d.names[name] != nil:
		err = fmt.Errorf("%w: it is published by %s", lane.ErrPublished, d.names[name].by.describe())
	case len(d.names) >= d.maxNames:
		err = fmt.Errorf("%w: it has %d names, and the host may have no more (raise its `ulimit -n`)", lane.ErrFull, len(d.names))
	case by != nil && len(by.names) >= maxPublishedBy:
		err = fmt.Errorf("%w: this process has published %d names, and no more may be", lane.ErrFull, len(by.names))
	}
	if err != nil {
		process.CloseAll([]int{fd})
		return err
	}
	if by == nil {
		by = &publisher{process: of, names: make(map[lane.Name]struct{})}
		if of != nil {
			d.lastNumber++
			by.number = d.lastNumber
		}
		d.publishers[of] = by
	}
	by.names[name] = struct{}{}
	d.names[name] = &published{fd: fd, sizeBytes: sizeBytes, by: by}
	return nil
}

func (d *Directory) unavailable() error {
	return fmt.Errorf("%w: %w", lane.ErrUnavailable, d.closedErr)
}

// WithdrawBy removes a name that the process has published; nil is this process.
func (d *Directory) WithdrawBy(of Process, name lane.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.names[name]; p != nil && p.by.process == of {
		d.remove(name, p)
	}
}

// remove, with mu held, removes a name and closes its descriptor.
func (d *Directory) remove(name lane.Name, p *published) {
	process.CloseAll([]int{p.fd})
	delete(d.names, name)
	delete(p.by.names, name)
}

// WithdrawAll removes all names of a process.
func (d *Directory) WithdrawAll(of Process) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropAll(d.publishers[of])
	delete(d.publishers, of)
}

// dropAll, with mu held, removes all names of a process, if it has any.
func (d *Directory) dropAll(by *publisher) {
	if by == nil {
		return
	}
	for name := range by.names {
		d.remove(name, d.names[name])
	}
}

// dropIfGone, with mu held, removes all names of the publisher of this name, if that process is
// dead or has hung up. It asks the kernel, which knows before the session ends: a process that joins
// again must not find its own names taken.
func (d *Directory) dropIfGone(name lane.Name) {
	if p := d.names[name]; p != nil && p.by.process != nil && p.by.process.Gone() {
		d.dropAll(p.by)
	}
}

// Entry describes the memory under a name.
type Entry struct {
	FD        int // of the memory; the directory's
	PIDFD     int // of the process that published it; the directory's
	SizeBytes int64
	Owner     uint32 // number of that process, never another's; 0: the host's
	PID       int    // of it
}

// Lookup finds a name and calls use with its entry. The descriptors are open until use returns. The
// error is that of use, or matches [lane.ErrNotPublished] or [lane.ErrUnavailable].
func (d *Directory) Lookup(name lane.Name, use func(Entry) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dropIfGone(name)
	p := d.names[name]
	switch {
	case d.closed:
		return d.unavailable()
	case p == nil:
		return fmt.Errorf("%w: number %d of the pool %x", lane.ErrNotPublished, name.Number, name.Pool)
	}
	pidfd, err := d.pidfd(p.by)
	if err != nil {
		return err
	}
	return use(Entry{FD: p.fd, PIDFD: pidfd, SizeBytes: p.sizeBytes, Owner: p.by.number, PID: p.by.pid()})
}

// pidfd, with mu held, is the pidfd of a publisher.
func (d *Directory) pidfd(by *publisher) (int, error) {
	if by.process != nil {
		return by.process.FD(), nil
	}
	if d.self < 0 {
		fd, err := process.Self()
		if err != nil {
			return -1, err
		}
		d.self = fd
	}
	return d.self, nil
}

// Close removes all names; no client is left.
func (d *Directory) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, by := range d.publishers {
		d.dropAll(by)
	}
	if d.self >= 0 {
		process.CloseAll([]int{d.self})
	}
	d.self, d.closed = -1, true
	d.watches.Close(d.closedErr)
}

// pid is the process id of the publisher.
func (by *publisher) pid() int {
	if by.process == nil {
		return os.Getpid()
	}
	return by.process.PID()
}

// describe names the process in errors.
func (by *publisher) describe() string {
	if by.process == nil {
		return "the host"
	}
	return fmt.Sprintf("process %d", by.pid())
}

// Publish implements [lane.Directory].
func (d *Directory) Publish(ctx context.Context, name lane.Name, fd int, sizeBytes int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	own, err := DuplicateFD(fd)
	if err != nil {
		return err
	}
	return d.PublishBy(nil, name, own, sizeBytes)
}

// Withdraw implements [lane.Directory].
func (d *Directory) Withdraw(name lane.Name) { d.WithdrawBy(nil, name) }

// Find implements [lane.Directory].
func (d *Directory) Find(ctx context.Context, name lane.Name) (lane.Found, error) {
	if ctx.Err() != nil {
		return lane.Found{}, context.Cause(ctx)
	}
	found := lane.Found{FD: -1}
	err := d.Lookup(name, func(e Entry) error {
		own, err := process.Duplicate(e.PIDFD)
		if err != nil {
			return err
		}
		if found.Owner, err = d.watches.Watch(Owner{Number: e.Owner}, own, e.PID); err != nil {
			return err
		}
		found.FD, err = process.Duplicate(e.FD)
		found.SizeBytes = e.SizeBytes
		return err
	})
	if err != nil {
		return lane.Found{}, err
	}
	return found, nil
}
