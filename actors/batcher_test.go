package actors_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/actors"
)

// batches is a batcher, with the batches that it has run.
type batches struct {
	*actors.Batcher[int]
	ran [][]int

	mu  sync.Mutex // due is called by timers
	due []uint64   // the batches that were reported due
}

func newBatches(size int, wait time.Duration) *batches {
	b := &batches{}
	b.Batcher = actors.NewBatcher(size, wait,
		func(batch []int) { b.ran = append(b.ran, batch) },
		func(batch uint64) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.due = append(b.due, batch)
		})
	return b
}

func (b *batches) checkDue(t *testing.T, want ...uint64) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if diff := cmp.Diff(want, b.due); diff != "" {
		t.Errorf("due (-want +got):\n%s", diff)
	}
}

func (b *batches) check(t *testing.T, want ...[]int) {
	t.Helper()
	if diff := cmp.Diff(want, b.ran); diff != "" {
		t.Errorf("batches (-want +got):\n%s", diff)
	}
}

func TestBatcherRunsFullBatches(t *testing.T) {
	b := newBatches(3, time.Hour)
	for i := range 7 {
		b.Add(i)
	}
	b.check(t, []int{0, 1, 2}, []int{3, 4, 5})
	b.Due(2)
	b.check(t, []int{0, 1, 2}, []int{3, 4, 5}, []int{6})

	one := newBatches(1, 0)
	one.Add(1)
	one.Add(2)
	one.check(t, []int{1}, []int{2})
	one.checkDue(t)
}

// TestBatcherWaits checks that a batch is due its wait after the first item, and
// that later items do not delay it.
func TestBatcherWaits(t *testing.T) {
	const wait = 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		b := newBatches(10, wait)
		pass := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		b.Add(1)
		pass(wait - 1)
		b.Add(2)
		b.checkDue(t)
		pass(1)
		b.checkDue(t, 0)
		b.check(t) // it runs on the actor's goroutine only
		b.Due(0)
		b.check(t, []int{1, 2})
		pass(10 * wait)
		b.checkDue(t, 0) // an empty batch is never due
	})
}

// TestBatcherIgnoresOldBatches fills batches before they are due: Due of an old
// batch must not run the next one.
func TestBatcherIgnoresOldBatches(t *testing.T) {
	const wait = 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		b := newBatches(2, wait)
		b.Add(1)
		b.Add(2)
		b.Add(3)
		b.Due(0) // on its way when the batch filled
		b.check(t, []int{1, 2})
		<-time.After(wait)
		synctest.Wait()
		b.checkDue(t, 1)
		b.Due(1)
		b.Due(1)
		b.Due(2) // it is empty
		b.check(t, []int{1, 2}, []int{3})
	})
}

// TestBatcherWithoutWait checks that a batch without a wait is due at once. Messages
// that were in the mailbox before Due join the batch.
func TestBatcherWithoutWait(t *testing.T) {
	b := newBatches(10, 0)
	for i := range 3 {
		b.Add(i)
	}
	b.checkDue(t, 0)
	b.Due(0)
	b.Add(3)
	b.Due(1)
	b.check(t, []int{0, 1, 2}, []int{3})
}

func TestBatcherSurvivesPanic(t *testing.T) {
	var ran [][]int
	b := actors.NewBatcher(2, time.Hour, func(batch []int) {
		ran = append(ran, batch)
		if len(ran) == 1 {
			panic("broken")
		}
	}, func(uint64) {})
	b.Add(1)
	func() {
		defer func() {
			if recover() != "broken" {
				t.Error("the panic did not reach the caller")
			}
		}()
		b.Add(2)
	}()
	b.Due(0) // the batch that failed is not run again
	b.Add(3)
	b.Add(4)
	if diff := cmp.Diff([][]int{{1, 2}, {3, 4}}, ran); diff != "" {
		t.Errorf("batches (-want +got):\n%s", diff)
	}
}

func TestBatcherSize(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("NewBatcher accepted a size of 0")
		}
	}()
	newBatches(0, 0)
}

// TestBatcherOfStage batches the messages of a stage's mailbox: while the stage runs
// one batch, the next one gathers.
func TestBatcherOfStage(t *testing.T) {
	type due struct{ batch uint64 }
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		gate := make(chan struct{})
		var stage *actors.Stage
		var ran [][]int
		b := actors.NewBatcher(4, 0, func(batch []int) {
			ran = append(ran, batch)
			<-gate
		}, func(batch uint64) { stage.Post(due{batch}) })
		r := &probe{onReceive: func(message any) {
			switch m := message.(type) {
			case int:
				b.Add(m)
			case due:
				b.Due(m.batch)
			}
		}}
		var err error
		if stage, err = s.Spawn("batching", r, actors.StageOptions{}); err != nil {
			t.Fatal(err)
		}
		stage.Post(0)
		synctest.Wait()
		for i := range 7 {
			stage.Post(1 + i)
		}
		close(gate)
		synctest.Wait()
		if diff := cmp.Diff([][]int{{0}, {1, 2, 3, 4}, {5, 6, 7}}, ran); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
	})
}
