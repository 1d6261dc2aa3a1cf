package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/directory"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Directory is where the processes of the bus find each other's descriptors (see
// [Bus.Directory]). The host keeps it: while there is none, Find fails with
// [lane.ErrUnavailable], which is [ErrHostGone] too.
//
// What was published stays so until it is withdrawn or the node is closed. With
// JoinOptions.Rejoin it is published again at each new host, without being told to,
// and Publish succeeds while there is no host; a name that a new host refuses is
// logged.
func (n *Node) Directory() lane.Directory { return &n.directory }

// nodeDirectory is a node's part of the directory, which outlives hosts.
type nodeDirectory struct {
	node    *Node
	watches directory.Watches

	mu        lockorder.Mutex[lockorder.NodeDirectory] // comes before the node's, and a link's
	names     map[lane.Name]*nodePublished
	closedErr error // why nothing is published any more
}

// nodePublished is a descriptor that this process publishes.
type nodePublished struct {
	fd        int
	sizeBytes int64
	link      *link // where it was last; nil: nowhere yet
}

// Publish implements [lane.Directory].
func (d *nodeDirectory) Publish(ctx context.Context, name lane.Name, fd int, sizeBytes int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := directory.CheckSize(sizeBytes); err != nil {
		return err
	}
	own, err := directory.Own(fd)
	if err != nil {
		return err
	}
	p := &nodePublished{fd: own, sizeBytes: sizeBytes}
	answer, err := d.add(ctx, name, p)
	if err != nil {
		process.CloseAll([]int{own})
		return err
	}
	err = answer()
	if err == nil || (errors.Is(err, bus.ErrHostGone) && d.node.rejoins()) {
		return nil
	}
	d.remove(name, p)
	return err
}

// rejoins reports whether the node looks for a new host when its host is gone.
func (n *Node) rejoins() bool { return n.opts.Rejoin && n.ctx.Err() == nil }

// add takes a name in, and asks the host, if there is one, to do so as well. The
// answer is to be waited for without the lock.
func (d *nodeDirectory) add(ctx context.Context, name lane.Name, p *nodePublished) (answer func() error, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l, err := d.currentLink()
	switch {
	case d.closedErr != nil:
		return nil, fmt.Errorf("%w: %w", lane.ErrUnavailable, d.closedErr)
	case d.names[name] != nil:
		return nil, fmt.Errorf("%w: it is published by this process", lane.ErrPublished)
	case err != nil && errors.Is(err, bus.ErrHostGone) && d.node.rejoins():
		answer = func() error { return nil } // it is published when there is one: see republish
	case err != nil:
		return nil, err
	default:
		answer = l.publish(ctx, name, p)
	}
	if d.names == nil {
		d.names = make(map[lane.Name]*nodePublished)
	}
	d.names[name] = p
	return answer, nil
}

// publish asks the host to publish a descriptor, and has the answer waited for until
// ctx ends. The node's directory is locked, so that a withdrawal comes behind it.
func (l *link) publish(ctx context.Context, name lane.Name, p *nodePublished) (answer func() error) {
	p.link = l
	token, q, err := l.newQuestion(1, nil)
	if err != nil {
		return func() error { return hostnode.DirectoryError(err) }
	}
	m := &wire.Publish{Token: token, Pool: name.Pool, Number: name.Number, Size: uint64(p.sizeBytes)}
	err = l.send(m, p.fd)
	return func() error {
		defer l.removeQuestion(token)
		if err == nil {
			_, err = l.await(ctx, q)
		}
		return hostnode.DirectoryError(err)
	}
}

// currentLink is the host of now.
func (d *nodeDirectory) currentLink() (*link, error) {
	l, err := d.node.currentLink()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lane.ErrUnavailable, err)
	}
	return l, nil
}

// Withdraw implements [lane.Directory].
func (d *nodeDirectory) Withdraw(name lane.Name) {
	d.mu.Lock()
	p := d.names[name]
	d.mu.Unlock()
	if p != nil {
		d.remove(name, p)
	}
}

// remove forgets a name, here and at the host, unless it is another's by now.
func (d *nodeDirectory) remove(name lane.Name, p *nodePublished) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.names[name] != p {
		return
	}
	delete(d.names, name)
	process.CloseAll([]int{p.fd})
	if p.link != nil {
		p.link.Queue(&wire.Withdraw{Pool: name.Pool, Number: name.Number})
	}
}

// republish has a new host know what this process publishes.
func (d *nodeDirectory) republish(l *link) {
	d.mu.Lock()
	names := slices.Collect(maps.Keys(d.names))
	d.mu.Unlock()
	for _, name := range names { // one by one: the host must read the descriptors
		if err := d.publishAt(l, name); err != nil && !errors.Is(err, bus.ErrHostGone) {
			d.node.opts.Logger.Error("publish a descriptor at the new host",
				slog.Any("pool", fmt.Sprintf("%x", name.Pool)), slog.Any("number", name.Number), slog.Any("error", err))
		}
	}
}

// publishAt publishes a name at a new host, unless it was withdrawn or is there, or
// the host is not the newest any more.
func (d *nodeDirectory) publishAt(l *link, name lane.Name) error {
	d.mu.Lock()
	p := d.names[name]
	now, err := d.currentLink()
	if p == nil || p.link == l || now != l {
		d.mu.Unlock()
		return err
	}
	answer := l.publish(context.Background(), name, p) // the link's end is enough
	d.mu.Unlock()
	return answer()
}

// Find implements [lane.Directory].
func (d *nodeDirectory) Find(ctx context.Context, name lane.Name) (lane.Found, error) {
	l, err := d.currentLink()
	if err != nil {
		return lane.Found{}, err
	}
	m, fds, err := l.find(ctx, name)
	if err != nil {
		return lane.Found{}, hostnode.DirectoryError(err)
	}
	owner, err := d.watches.Watch(directory.Owner{Epoch: l.welcome.Epoch, Number: m.Owner}, fds[1], int(m.PID))
	if err != nil {
		process.CloseAll(fds[:1])
		return lane.Found{}, err
	}
	return lane.Found{FD: fds[0], SizeBytes: int64(m.Size), Owner: owner}, nil
}

// close is called when there will be no host any more.
func (d *nodeDirectory) close(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.names {
		process.CloseAll([]int{p.fd})
	}
	d.names, d.closedErr = nil, err
}
