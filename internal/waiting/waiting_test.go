package waiting

import (
	"context"
	"errors"
	"sync"
	"testing"
)

// TestFor: For returns when the group is done, or when the context ends before that.
func TestFor(t *testing.T) {
	var group sync.WaitGroup
	if err := For(t.Context(), &group); err != nil {
		t.Errorf("the group is empty: %v", err)
	}
	done := make(chan struct{})
	group.Go(func() { <-done })
	over := errors.New("the end of the test")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if err := For(ctx, &group); !errors.Is(err, over) {
		t.Errorf("the group is not done: %v, want %v", err, over)
	}
	waited := make(chan error)
	go func() { waited <- For(context.Background(), &group) }()
	close(done)
	if err := <-waited; err != nil {
		t.Errorf("the group is done: %v", err)
	}
}
