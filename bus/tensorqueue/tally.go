package tensorqueue

import (
	"context"

	"github.com/omnibus-runtime/omnibus/internal/lockorder"
)

// pendingCount counts what is pending, for callers that wait until the count is zero. It may grow while
// they wait.
type pendingCount struct {
	mu   lockorder.Mutex[lockorder.PendingCount]
	n    int
	zero chan struct{} // closed when n is 0; nil: no caller waits
}

func (t *pendingCount) add(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += n
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *pendingCount) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
