package bus

import (
	"fmt"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/peer"
)

// owners are the processes whose descriptors this one has found: one watch of
// each, however much is found of it.
type owners struct {
	mu      sync.Mutex
	watched map[ownerKey]*peer.Process
	closed  bool
}

// ownerKey is a process that publishes, at one life of a host.
type ownerKey struct {
	epoch  uint64
	number uint32
}

// watch finds the watch of a process, or begins it. It owns the pidfd.
func (o *owners) watch(key ownerKey, pidfd, pid int) (lane.Owner, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.watched[key]
	if p != nil || o.closed {
		peer.CloseAll([]int{pidfd})
	}
	switch {
	case o.closed:
		return nil, fmt.Errorf("%w: %w", lane.ErrUnavailable, ErrClosed)
	case p != nil:
		return p, nil
	}
	o.forgetDead()
	p, err := peer.Adopt(pidfd, pid)
	if err != nil {
		return nil, err
	}
	if o.watched == nil {
		o.watched = make(map[ownerKey]*peer.Process)
	}
	o.watched[key] = p
	return p, nil
}

// forgetDead, with mu held, ends the watches that have seen what they watched for.
// So there are no more of them than processes that live, and one.
func (o *owners) forgetDead() {
	for key, p := range o.watched {
		select {
		case <-p.Done():
			_ = p.Close() // its Done stays closed
			delete(o.watched, key)
		default:
		}
	}
}

func (o *owners) close() {
	o.mu.Lock()
	watched := o.watched
	o.watched, o.closed = nil, true
	o.mu.Unlock()
	for _, p := range watched {
		_ = p.Close() // a watch holds nothing that could be lost
	}
}
