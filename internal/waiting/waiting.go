package waiting

import (
	"context"
	"sync"
)

// For waits for a group that no goroutine joins any more. If the context ends first, it returns the
// cause, and a goroutine stays until the group is done.
func For(ctx context.Context, group *sync.WaitGroup) error {
	done := make(chan struct{})
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
