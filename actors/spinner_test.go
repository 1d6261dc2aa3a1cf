package actors

import (
	"testing"
	"testing/synctest"
)

// TestSpinnerPolls: an idle worker polls, except while a woken goroutine waits to run.
func TestSpinnerPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polls := 0
		s := NewSpinner(func(enough, _ func() bool) bool {
			if enough() {
				t.Error("a goroutine polls while a woken goroutine waits to run")
			}
			polls++
			return false
		}, false)
		d := NewDispatcher(s)
		d.Schedule(func() {})
		synctest.Wait()
		if polls != 0 {
			t.Error("a worker polls with a disabled spinner")
		}
		s.Enable(true)
		d.Schedule(func() {})
		synctest.Wait()
		if polls != 1 || idleWorkers(d) != 1 {
			t.Errorf("%d polls of %d idle workers, want one of one", polls, idleWorkers(d))
		}
		s.Wake()
		d.Schedule(func() {})
		synctest.Wait()
		if polls != 1 {
			t.Error("a worker polls while a woken goroutine waits to run")
		}
		s.Awake()
		d.Close()
		if s.enough() {
			t.Error("a goroutine counts as woken after all have run")
		}
	})
}

// TestPollingWorkerGetsNoWork: scheduled work goes to another worker than one that handles work from
// its poll, since that one may wait for a lock that is held until the scheduled work is done.
func TestPollingWorkerGetsNoWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Dispatcher
		released, found := make(chan struct{}), false
		s := NewSpinner(func(enough, begin func() bool) bool {
			if found {
				return false
			}
			found = true
			if !begin() {
				t.Error("begin of an idle worker reports false")
			}
			d.Schedule(func() { close(released) })
			if !enough() {
				t.Error("enough reports false while a woken goroutine waits to run")
			}
			<-released // a deadlock, if this worker was given the work
			return true
		}, false)
		s.Enable(true)
		d = NewDispatcher(s)
		d.Schedule(func() {})
		synctest.Wait()
		if idle := idleWorkers(d); idle != 2 {
			t.Errorf("%d idle workers, want 2", idle)
		}
		d.Close()
	})
}

// TestScheduledWorkerHandlesNothingFound: a worker that was given work while it polled handles no work of its poll.
func TestScheduledWorkerHandlesNothingFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Dispatcher
		ran, polls := false, 0
		s := NewSpinner(func(_, begin func() bool) bool {
			if polls++; polls == 1 {
				d.Schedule(func() { ran = true }) // to the worker that parked last: this one
				if begin() {
					t.Error("begin of a worker that was given work reports true")
				}
			}
			return false
		}, false)
		s.Enable(true)
		d = NewDispatcher(s)
		d.Schedule(func() {})
		synctest.Wait()
		if !ran || idleWorkers(d) != 1 {
			t.Errorf("the work was done: %v, by one of %d workers", ran, idleWorkers(d))
		}
		d.Close()
	})
}

// TestPollUntil: with a spinner that never parks, one idle worker polls again and again while the
// spinner is enabled, runs work that is scheduled meanwhile, and no other worker polls.
func TestPollUntil(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Dispatcher
		var s *Spinner
		polls, ran := 0, false
		s = NewSpinner(func(_, begin func() bool) bool {
			switch polls++; polls {
			case 100:
				if s.PollUntil(begin, func() bool { return false }) {
					t.Error("two goroutines poll")
				}
				d.Schedule(func() { ran = true })
			case 1000:
				s.Enable(false)
			}
			return false
		}, true)
		d = NewDispatcher(s)
		s.Enable(true)
		d.Schedule(func() {})
		synctest.Wait()
		if polls != 1000 || !ran || idleWorkers(d) != 1 {
			t.Errorf("%d polls, its work is done: %t, %d idle workers; want 1000 polls of one that works", polls, ran, idleWorkers(d))
		}
		d.Close()
	})
}

// TestDisabledSpinnerParks: a worker with a disabled spinner parks.
func TestDisabledSpinnerParks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewSpinner(func(func() bool, func() bool) bool {
			t.Error("a worker polls with a disabled spinner")
			return false
		}, true)
		d := NewDispatcher(s)
		d.Schedule(func() {})
		synctest.Wait()
		if idleWorkers(d) != 1 {
			t.Error("the worker does not park")
		}
		d.Close()
	})
}
