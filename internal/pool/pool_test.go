package pool

import (
	"slices"
	"testing"
)

// TestFirstComeFirstServed: what is given back goes to the waiter that came first, and is not
// taken by one that came later, nor granted to one that has given up.
func TestFirstComeFirstServed(t *testing.T) {
	var p Pool[int]
	p.Add(7)
	if v, ok := p.TryTake(); !ok || v != 7 || p.Free() != 0 {
		t.Fatalf("took %d, %v, and %d are free", v, ok, p.Free())
	}
	var granted []int
	waiters := make([]*Waiter[int], 3)
	for i := range waiters {
		waiters[i] = &Waiter[int]{Granted: func(v int) { granted = append(granted, 10*i+v) }}
		if _, ok := p.Take(waiters[i]); ok {
			t.Fatal("took what is not there")
		}
	}
	if !p.Withdraw(waiters[1]) {
		t.Error("a waiter was granted nothing, and cannot give up")
	}
	p.Give(1)
	if _, ok := p.TryTake(); ok {
		t.Error("one that came later took what a waiter waits for")
	}
	p.Give(2)
	p.Give(3)
	if want := []int{1, 22}; !slices.Equal(granted, want) || p.Free() != 1 {
		t.Errorf("granted %d, want %d, and %d are free", granted, want, p.Free())
	}
	if p.Withdraw(waiters[0]) {
		t.Error("a waiter that was granted something gives up")
	}
}

// TestWait: a wait ends with a thing, or with done, and then has nothing.
func TestWait(t *testing.T) {
	var p Pool[int]
	done := make(chan struct{})
	close(done)
	if v, ok := p.Wait(done); ok {
		t.Errorf("waited for %d when the wait was over", v)
	}
	got := make(chan int)
	go func() {
		v, _ := p.Wait(nil)
		got <- v
	}()
	p.Give(5)
	if v := <-got; v != 5 {
		t.Errorf("waited for %d, want 5", v)
	}
}
