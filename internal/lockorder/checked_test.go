//go:build lockcheck

package lockorder

import (
	"strings"
	"sync"
	"testing"
)

// fault is the report of a fault in f, or empty. The goroutine goes on after the fault.
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
		t.Errorf("an unexpected fault:\n%s", report)
	}
}

func lockOutputs(mu *Mutex[Outputs]) { mu.Lock() }

func lockBus(mu *Mutex[Bus]) { mu.Lock() }

// TestWrongOrderIsReported: the report has both stacks, and no second goroutine is needed.
func TestWrongOrderIsReported(t *testing.T) {
	var bus Mutex[Bus]
	var outputs Mutex[Outputs]
	wantFault(t, fault(t, func() {
		lockOutputs(&outputs)
		lockBus(&bus)
		bus.Unlock()
		outputs.Unlock()
	}), "Bus (rank", "is taken while Outputs (rank", "lockorder.lockOutputs", "checked_test.go", "TestWrongOrderIsReported")
	wantNone(t, fault(t, func() {
		bus.Lock()
		outputs.Lock()
		bus.Unlock()
		outputs.Unlock()
		outputs.Lock()
		outputs.Unlock()
		bus.Lock()
		bus.Unlock()
	}))
}

// TestOneClassTwiceIsReported: two instances of one class, or two classes of one rank, are not
// held together.
func TestOneClassTwiceIsReported(t *testing.T) {
	var one, other Mutex[Outputs]
	wantFault(t, fault(t, func() { one.Lock(); other.Lock(); other.Unlock(); one.Unlock() }), "Outputs", "while Outputs")
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

// TestTryLockHasNoOrder: TryLock is allowed at any rank. Locks that are taken under its lock have
// to follow the order.
func TestTryLockHasNoOrder(t *testing.T) {
	var bus Mutex[Bus]
	var outputs Mutex[Outputs]
	var latency Mutex[Latency]
	wantNone(t, fault(t, func() {
		outputs.Lock()
		if !bus.TryLock() {
			t.Error("TryLock did not get a free lock")
		}
		if bus.TryLock() {
			t.Error("TryLock got a lock twice")
		}
		outputs.Unlock()
		latency.Lock()
		latency.Unlock()
		bus.Unlock()
	}))
	wantFault(t, fault(t, func() {
		if outputs.TryLock() {
			bus.Lock()
			bus.Unlock()
			outputs.Unlock()
		}
	}), "Bus", "while Outputs")
}

// TestUnlockOnAnotherGoroutine: the goroutine that took the lock does not hold it any more, and the
// locks of the goroutine that unlocked it are unchanged.
func TestUnlockOnAnotherGoroutine(t *testing.T) {
	var outputs Mutex[Outputs]
	var placing RWMutex[ExchangePlacing]
	wantNone(t, fault(t, func() {
		outputs.Lock()
		elsewhere(outputs.Unlock)
		AssertNone("the outputs is unlocked elsewhere")
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

// TestHandlersMayRunUnderRights: AssertNone allows a Right, and a Right has a rank in the order.
func TestHandlersMayRunUnderRights(t *testing.T) {
	var asleep Right[FlowSleep]
	var handler Right[HandlerLock]
	var outputs Mutex[Outputs]
	wantNone(t, fault(t, func() {
		handler.Lock()
		asleep.Lock()
		AssertNone("a handler is called")
		asleep.Unlock()
		handler.Unlock()
	}))
	wantFault(t, fault(t, func() {
		handler.Lock()
		outputs.Lock()
		AssertNone("a handler is called")
		outputs.Unlock()
		handler.Unlock()
	}), "a handler is called while Outputs", "TestHandlersMayRunUnderRights")
	wantFault(t, fault(t, func() { asleep.Lock(); handler.Lock(); handler.Unlock(); asleep.Unlock() }), "HandlerLock", "while FlowSleep")
	wantNone(t, fault(t, func() {
		outputs.Lock()
		if asleep.TryLock() {
			asleep.Unlock()
		}
		outputs.Unlock()
	}))
}

// TestConditionsWait: Wait of a condition releases the lock, and takes it again in the order.
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

// TestLocksAllocateNothing: tests that count allocations pass with the tag too.
func TestLocksAllocateNothing(t *testing.T) {
	var outputs Mutex[Outputs]
	lock := func() {
		outputs.Lock()
		outputs.Unlock()
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
