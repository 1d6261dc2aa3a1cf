package actors

import (
	"testing"
	"testing/synctest"
)

// TestSpinnerPolls: an idle worker looks, and not while another goroutine is about to run.
func TestSpinnerPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := 0
		l := NewSpinner(func(enough, _ func() bool) bool {
			if enough() {
				t.Error("a goroutine looks while another is about to run")
			}
			looks++
			return false
		}, false)
		d := NewDispatcher(l)
		d.Schedule(func() {})
		synctest.Wait()
		if looks != 0 {
			t.Error("a worker looks where there is nothing to look at")
		}
		l.Enable(true)
		d.Schedule(func() {})
		synctest.Wait()
		if looks != 1 || idleWorkers(d) != 1 {
			t.Errorf("%d looks of %d idle workers, want one of one", looks, idleWorkers(d))
		}
		l.Wake()
		d.Schedule(func() {})
		synctest.Wait()
		if looks != 1 {
			t.Error("a worker looks while a goroutine that was woken does not run yet")
		}
		l.Awake()
		d.Close()
		if l.enough() {
			t.Error("a goroutine counts as woken when all have run")
		}
	})
}

// TestPollingWorkerGetsNoWork: a worker that handles what it has found is given no work, which
// goes to another: it may wait for a lock that is held until that work is done.
func TestPollingWorkerGetsNoWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Dispatcher
		released, found := make(chan struct{}), false
		l := NewSpinner(func(enough, begin func() bool) bool {
			if found {
				return false
			}
			found = true
			if !begin() {
				t.Error("an idle worker has no time")
			}
			d.Schedule(func() { close(released) })
			if !enough() {
				t.Error("a worker that has woken another has not enough to do")
			}
			<-released // a deadlock, if the work was given to this one
			return true
		}, false)
		l.Enable(true)
		d = NewDispatcher(l)
		d.Schedule(func() {})
		synctest.Wait()
		if idle := idleWorkers(d); idle != 2 {
			t.Errorf("%d idle workers, want 2", idle)
		}
		d.Close()
	})
}

// TestScheduledWorkerHandlesNothingFound: a worker that was given work while it looked leaves what it found.
func TestScheduledWorkerHandlesNothingFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Dispatcher
		ran, looks := false, 0
		l := NewSpinner(func(_, begin func() bool) bool {
			if looks++; looks == 1 {
				d.Schedule(func() { ran = true }) // to the worker that parked last: this one
				if begin() {
					t.Error("a worker that was given work has time")
				}
			}
			return false
		}, false)
		l.Enable(true)
		d = NewDispatcher(l)
		d.Schedule(func() {})
		synctest.Wait()
		if !ran || idleWorkers(d) != 1 {
			t.Errorf("the work was done: %v, by one of %d workers", ran, idleWorkers(d))
		}
		d.Close()
	})
}

// TestPollUntil: an idle worker of a lookout that polls looks again and again, as long as there is
// something to look at, takes the work that comes meanwhile, and is the only one.
func TestPollUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Dispatcher
		var l *Spinner
		looks, ran := 0, false
		l = NewSpinner(func(_, begin func() bool) bool {
			switch looks++; looks {
			case 100:
				if l.PollUntil(begin, func() bool { return false }) {
					t.Error("two goroutines poll")
				}
				d.Schedule(func() { ran = true })
			case 1000:
				l.Enable(false)
			}
			return false
		}, true)
		d = NewDispatcher(l)
		l.Enable(true)
		d.Schedule(func() {})
		synctest.Wait()
		if looks != 1000 || !ran || idleWorkers(d) != 1 {
			t.Errorf("%d looks, its work is done: %t, %d idle workers; want 1000 looks of one that works", looks, ran, idleWorkers(d))
		}
		d.Close()
	})
}

// TestDisabledSpinnerParks: where there is nothing to look at a goroutine parks.
func TestDisabledSpinnerParks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewSpinner(func(func() bool, func() bool) bool {
			t.Error("a worker looks where there is nothing to look at")
			return false
		}, true)
		d := NewDispatcher(l)
		d.Schedule(func() {})
		synctest.Wait()
		if idleWorkers(d) != 1 {
			t.Error("the worker does not park")
		}
		d.Close()
	})
}
