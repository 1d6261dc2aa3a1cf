package lane

import (
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// blockingMemory is registered memory whose Close blocks until resume.
type blockingMemory struct {
	cudaipc.HostMemory
	asked  chan struct{}
	resume chan struct{}
	closed atomic.Bool
}

func (k *blockingMemory) Close() error {
	close(k.asked)
	<-k.resume
	k.closed.Store(true)
	return nil
}

// TestCloseWaitsForMaps: close waits for a running unregister, after which the memory is unmapped;
// memory that is released later is unmapped at once.
func TestCloseWaitsForMaps(t *testing.T) {
	k := &blockingMemory{asked: make(chan struct{}), resume: make(chan struct{})}
	var m maps
	busy, late := m.add(&hostMap{host: k}), m.add(&hostMap{})
	var early, unmapped atomic.Bool
	m.release(busy, func() {
		early.Store(!k.closed.Load())
		unmapped.Store(true)
	}, func() { t.Error("it stays") })
	<-k.asked
	closed := make(chan error, 1)
	go func() { closed <- m.close() }()
	select {
	case err := <-closed:
		t.Errorf("closed while memory is being unregistered: %v", err)
	case k.resume <- struct{}{}:
		if err := <-closed; err != nil || !unmapped.Load() || early.Load() {
			t.Errorf("close: %v, unmapped %t, before it was unregistered %t", err, unmapped.Load(), early.Load())
		}
	}
	gone := false
	m.release(late, func() { gone = true }, func() {})
	if !gone {
		t.Error("unregistered memory stays mapped")
	}
}
