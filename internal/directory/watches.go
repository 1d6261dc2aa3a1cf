package directory

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/process"
)

// Watches are of the processes whose descriptors this one has found: one for each, however much
// is found of it.
type Watches struct {
	mu        lockorder.Mutex[lockorder.Watches]
	watched   map[Owner]*process.Process
	closedErr error // why there are no more; nil: they are open
}

// Owner is a process that publishes, at one life of a host.
type Owner struct {
	Epoch  uint64
	Number uint32
}

// Watch finds the watch of a process, or begins it. It owns the pidfd.
func (w *Watches) Watch(of Owner, pidfd, pid int) (lane.Owner, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.watched[of]
	if p != nil || w.closedErr != nil {
		process.CloseAll([]int{pidfd})
	}
	switch {
	case w.closedErr != nil:
		return nil, fmt.Errorf("%w: %w", lane.ErrUnavailable, w.closedErr)
	case p != nil:
		return p, nil
	}
	w.closeDead()
	p, err := process.Adopt(pidfd, pid)
	if err != nil {
		return nil, err
	}
	if w.watched == nil {
		w.watched = make(map[Owner]*process.Process)
	}
	w.watched[of] = p
	return p, nil
}

// closeDead, with mu held, ends the watches that have seen what they watched for.
// So there are no more of them than processes that live, and one.
func (w *Watches) closeDead() {
	for of, p := range w.watched {
		select {
		case <-p.Done():
			_ = p.Close() // its Done stays closed
			delete(w.watched, of)
		default:
		}
	}
}

// Close ends them. over is why no more may begin.
func (w *Watches) Close(closedErr error) {
	w.mu.Lock()
	watched := w.watched
	w.watched, w.closedErr = nil, closedErr
	w.mu.Unlock()
	for _, p := range watched {
		_ = p.Close() // a watch holds nothing that could be lost
	}
}
