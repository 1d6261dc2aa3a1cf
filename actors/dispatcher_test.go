package actors

import (
	"sync"
	"testing"
	"testing/synctest"
)

// idleWorkers returns how many workers of d are parked.
func idleWorkers(d *Dispatcher) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.idle)
}

func TestDispatcherReusesWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(nil)
		defer d.Close()
		ran := 0
		for range 100 {
			d.Schedule(func() { ran++ })
			synctest.Wait()
		}
		if ran != 100 {
			t.Errorf("%d functions ran, want 100", ran)
		}
		if idle := idleWorkers(d); idle != 1 {
			t.Errorf("%d workers for one function at a time, want 1", idle)
		}
	})
}

func TestDispatcherRunsBesideBlockedWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(nil)
		defer d.Close()
		release := make(chan struct{})
		for range 50 {
			d.Schedule(func() { <-release })
		}
		ran := false
		d.Schedule(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("a function waits for blocked workers")
		}
		close(release)
	})
}

// TestDispatcherBoundsIdleWorkers relies on the bubble to find a worker that neither
// parked nor exited: a bubble does not end while it has a goroutine.
func TestDispatcherBoundsIdleWorkers(t *testing.T) {
	const busy = maxIdle + 20
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(nil)
		release := make(chan struct{})
		for range busy {
			d.Schedule(func() { <-release })
		}
		synctest.Wait()
		if idle := idleWorkers(d); idle != 0 {
			t.Errorf("%d idle workers while all are busy", idle)
		}
		close(release)
		synctest.Wait()
		if idle := idleWorkers(d); idle != maxIdle {
			t.Errorf("%d idle workers after a burst of %d, want %d", idle, busy, maxIdle)
		}
		d.Close()
	})
}

// TestDispatcherClose closes a dispatcher with an idle and a busy worker.
func TestDispatcherClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDispatcher(nil)
		release := make(chan struct{})
		d.Schedule(func() { <-release })
		d.Schedule(func() {})
		synctest.Wait()
		d.Close() // does not wait for the busy worker
		d.Close()
		ran := false
		d.Schedule(func() { ran = true })
		synctest.Wait()
		if !ran {
			t.Error("a function scheduled after Close did not run")
		}
		close(release)
		synctest.Wait()
		if idle := idleWorkers(d); idle != 0 {
			t.Errorf("%d workers parked after Close", idle)
		}
	})
}

// TestDispatcherRunsEachOnce schedules from many goroutines at once.
func TestDispatcherRunsEachOnce(t *testing.T) {
	const senders, each = 8, 2000
	d := NewDispatcher(nil)
	defer d.Close()
	var done sync.WaitGroup
	done.Add(senders * each)
	ran := make([]int, senders*each) // -race sees a function that runs twice
	for s := range senders {
		go func() {
			for i := range each {
				d.Schedule(func() { ran[s*each+i]++; done.Done() })
			}
		}()
	}
	done.Wait()
	for i, n := range ran {
		if n != 1 {
			t.Fatalf("function %d ran %d times", i, n)
		}
	}
}
