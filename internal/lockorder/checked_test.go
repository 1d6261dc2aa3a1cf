//go:build lockcheck

package lockorder

import (
	"strings"
	"sync"
	"testing"
)

// fault is the report of f, on a goroutine that goes on as if nothing was wrong. It is empty if
// there was none.
func fault(t *testing.T, f func()) (report string) {
	t.Helper()
	ends := fail
	defer func() { fail = ends }()
	fail = func(r string) { report = r }
	f()
	return report
}

func wantFault(t *testing.T, report string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(report, part) {
			t.Errorf("the report lacks %q:\n%s", part, report)
		}
	}
}

func wantNone(t *testing.T, report string) {
	t.Helper()
	if report != "" {
		t.Errorf("a fault where there is none:\n%s", report)
	}
}

func lockOutlet(mu *Mutex[Outlet]) { mu.Lock() }

func lockBus(mu *Mutex[Bus]) { mu.Lock() }

// TestWrongOrderIsReported: no other goroutine has to want the locks, and both stacks are there.
func TestWrongOrderIsReported(t *testing.T) {
	var bus Mutex[Bus]
	var outlet Mutex[Outlet]
	wantFault(t, fault(t, func() {
		lockOutlet(&outlet)
		lockBus(&bus)
		bus.Unlock()
		outlet.Unlock()
	}), "Bus (rank", "is taken while Outlet (rank", "lockorder.lockOutlet", "checked_test.go", "TestWrongOrderIsReported")
	wantNone(t, fault(t, func() {
		bus.Lock()
		outlet.Lock()
		bus.Unlock()
		outlet.Unlock()
		outlet.Lock()
		outlet.Unlock()
		bus.Lock()
		bus.Unlock()
	}))
}

// TestOneClassTwiceIsReported: one per request is one class, and one rank is one class.
func TestOneClassTwiceIsReported(t *testing.T) {
	var one, other Mutex[Outlet]
	wantFault(t, fault(t, func() { one.Lock(); other.Lock(); other.Unlock(); one.Unlock() }), "Outlet", "while Outlet")
	var results Mutex[Results]
	var held Mutex[TaskHeld]
	wantFault(t, fault(t, func() { results.Lock(); held.Lock(); held.Unlock(); results.Unlock() }), "TaskHeld", "while Results")
}

func TestReadersKeepTheOrder(t *testing.T) {
	var placing RWMutex[ExchangePlacing]
	var stages Mutex[NodeDirectory]
	var node Mutex[Node]
	wantNone(t, fault(t, func() { placing.RLock(); node.Lock(); node.Unlock(); placing.RUnlock() }))
	wantFault(t, fault(t, func() { placing.RLock(); stages.Lock(); stages.Unlock(); placing.RUnlock() }), "NodeDirectory", "while ExchangePlacing")
	wantFault(t, fault(t, func() { placing.RLock(); placing.RLock(); placing.RUnlock(); placing.RUnlock() }), "ExchangePlacing", "while ExchangePlacing")
	wantFault(t, fault(t, func() { placing.Lock(); stages.Lock(); stages.Unlock(); placing.Unlock() }), "NodeDirectory", "while ExchangePlacing")
	wantNone(t, fault(t, func() { AssertNone("a handler is called") }))
}

// TestTryLockHasNoOrder: it waits for nothing. What is taken under it has one.
func TestTryLockHasNoOrder(t *testing.T) {
	var bus Mutex[Bus]
	var outlet Mutex[Outlet]
	var latency Mutex[Latency]
	wantNone(t, fault(t, func() {
		outlet.Lock()
		if !bus.TryLock() {
			t.Error("TryLock did not get a free lock")
		}
		if bus.TryLock() {
			t.Error("TryLock got a lock twice")
		}
		outlet.Unlock()
		latency.Lock()
		latency.Unlock()
		bus.Unlock()
	}))
	wantFault(t, fault(t, func() {
		if outlet.TryLock() {
			bus.Lock()
			bus.Unlock()
			outlet.Unlock()
		}
	}), "Bus", "while Outlet")
}

// TestUnlockOnAnotherGoroutine: the lock is no longer held by the goroutine that took it, and the
// one that unlocked it holds what it had.
func TestUnlockOnAnotherGoroutine(t *testing.T) {
	var outlet Mutex[Outlet]
	var placing RWMutex[ExchangePlacing]
	wantNone(t, fault(t, func() {
		outlet.Lock()
		elsewhere(outlet.Unlock)
		AssertNone("the outlet is unlocked elsewhere")
		placing.RLock()
		elsewhere(placing.RUnlock)
		AssertNone("the reader is unlocked elsewhere")
	}))
	var queue Mutex[FlowQueue]
	placing.RLock()
	queue.Lock()
	defer queue.Unlock()
	elsewhere(func() {
		placing.RLock()
		placing.RUnlock()
		wantNone(t, fault(t, func() { AssertNone("a reader that has unlocked its own") }))
	})
	placing.RUnlock()
	wantFault(t, fault(t, func() { AssertNone("the queue is locked") }), "the queue is locked while FlowQueue")
}

// TestHandlersMayRunUnderRights: a Right is no lock on data, and has its place in the order.
func TestHandlersMayRunUnderRights(t *testing.T) {
	var asleep Right[FlowAsleep]
	var turn Right[StageTurn]
	var outlet Mutex[Outlet]
	wantNone(t, fault(t, func() {
		turn.Lock()
		asleep.Lock()
		AssertNone("a handler is called")
		asleep.Unlock()
		turn.Unlock()
	}))
	wantFault(t, fault(t, func() {
		turn.Lock()
		outlet.Lock()
		AssertNone("a handler is called")
		outlet.Unlock()
		turn.Unlock()
	}), "a handler is called while Outlet", "TestHandlersMayRunUnderRights")
	wantFault(t, fault(t, func() { asleep.Lock(); turn.Lock(); turn.Unlock(); asleep.Unlock() }), "StageTurn", "while FlowAsleep")
	wantNone(t, fault(t, func() {
		outlet.Lock()
		if asleep.TryLock() {
			asleep.Unlock()
		}
		outlet.Unlock()
	}))
}

// TestConditionsWait: Wait gives the lock up, and takes it again in the order.
func TestConditionsWait(t *testing.T) {
	var mu Mutex[Sender]
	cond := sync.NewCond(&mu)
	woken := false
	wantNone(t, fault(t, func() {
		mu.Lock()
		go func() {
			mu.Lock()
			woken = true
			mu.Unlock()
			cond.Signal()
		}()
		for !woken {
			cond.Wait()
		}
		mu.Unlock()
		AssertNone("the wait is over")
	}))
}

// TestLocksAllocateNothing: tests that count allocations hold under the tag too.
func TestLocksAllocateNothing(t *testing.T) {
	var outlet Mutex[Outlet]
	lock := func() {
		outlet.Lock()
		outlet.Unlock()
	}
	if n := testing.AllocsPerRun(100, lock); n != 0 {
		t.Errorf("a lock allocates %v times", n)
	}
}

func elsewhere(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}
