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

// Directory is where the processes of the bus find each other's descriptors (see [bus.Bus.Directory]).
// The host keeps it: without a host Find fails with [lane.ErrUnavailable], which wraps
// [bus.ErrHostGone].
//
// A name stays published until it is withdrawn or the node is closed. With JoinOptions.Rejoin the
// node publishes its names again at each new host, and Publish succeeds without a host. A name that
// a new host refuses is logged.
func (n *Node) Directory() lane.Directory { return &n.directory }

// nodeDirectory is a node's part of the directory. It outlives hosts.
type nodeDirectory struct {
	node    *Node
	watches directory.Watches

	mu        lockorder.Mutex[lockorder.NodeDirectory] // taken before the node's lock and a link's locks
	names     map[lane.Name]*nodePublished
	closedErr error // why nothing can be published
}

// nodePublished is a descriptor that this process publishes.
type nodePublished struct {
	fd        int
	sizeBytes int64
	link      *link // the last link that published it; nil: none yet
}

// Publish implements [lane.Directory].
func (d *nodeDirectory) Publish(ctx context.Context, name lane.Name, fd int, sizeBytes int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := directory.CheckSize(sizeBytes); err != nil {
		return err
	}
	own, err := directory.DuplicateFD(fd)
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

// rejoins reports whether the node waits for a new host when its host is gone.
func (n *Node) rejoins() bool { return n.opts.Rejoin && n.ctx.Err() == nil }

// add registers a name, and asks the host, if there is one, to publish it. The caller waits for the
// answer without the lock.
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
		answer = func() error { return nil } // republish publishes it at the next host
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

// publish asks the host to publish a descriptor; answer waits until ctx ends. The caller holds the
// lock of the node's directory, so that a withdrawal is sent after it.
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

// currentLink is the link to the current host.
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

// remove unregisters a name here and at the host, unless the name belongs to another publication.
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

// republish publishes the names of this process at a new host.
func (d *nodeDirectory) republish(l *link) {
	d.mu.Lock()
	names := slices.Collect(maps.Keys(d.names))
	d.mu.Unlock()
	for _, name := range names { // one by one, so that the host can read the descriptors
		if err := d.publishAt(l, name); err != nil && !errors.Is(err, bus.ErrHostGone) {
			d.node.opts.Logger.Error("publish a descriptor at the new host",
				slog.Any("pool", fmt.Sprintf("%x", name.Pool)), slog.Any("number", name.Number), slog.Any("error", err))
		}
	}
}

// publishAt publishes a name at a new host, unless the name was withdrawn or is published there, or
// a newer host has come.
func (d *nodeDirectory) publishAt(l *link, name lane.Name) error {
	d.mu.Lock()
	p := d.names[name]
	now, err := d.currentLink()
	if p == nil || p.link == l || now != l {
		d.mu.Unlock()
		return err
	}
	answer := l.publish(context.Background(), name, p) // the end of the link ends the wait
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

// close closes the descriptors, and has Publish fail with err.
func (d *nodeDirectory) close(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.names {
		process.CloseAll([]int{p.fd})
	}
	d.names, d.closedErr = nil, err
}
