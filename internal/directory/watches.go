package directory

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/process"
)

// Watches are the watches of the processes whose descriptors this process has found: one for each
// process.
type Watches struct {
	mu        lockorder.Mutex[lockorder.Watches]
	watched   map[Owner]*process.Process
	closedErr error // set by Close
}

// Owner identifies a process that publishes, within one epoch of a host.
type Owner struct {
	Epoch  uint64
	Number uint32
}

// Watch finds the watch of a process, or starts it. It owns the pidfd.
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

// closeDead, with mu held, closes the watches of dead processes. So there are at most as many
// watches as live processes, plus one.
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

// Close closes all watches. Watch then fails with closedErr.
func (w *Watches) Close(closedErr error) {
	w.mu.Lock()
	watched := w.watched
	w.watched, w.closedErr = nil, closedErr
	w.mu.Unlock()
	for _, p := range watched {
		_ = p.Close() // a watch has no data to lose
	}
}
