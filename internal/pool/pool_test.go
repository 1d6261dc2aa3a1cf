package pool

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestFirstComeFirstServed: a permit that is given back goes to the waiter that came first. Neither a
// later caller nor a withdrawn waiter gets it.
func TestFirstComeFirstServed(t *testing.T) {
	var p Pool
	p.Add(1)
	if !p.TryTake() || p.Free() != 0 {
		t.Fatalf("%d permits of one are free after the first Take", p.Free())
	}
	var granted []int
	waiters := make([]*Waiter, 3)
	for i := range waiters {
		waiters[i] = &Waiter{Granted: func() { granted = append(granted, i) }}
		if p.Take(waiters[i]) {
			t.Fatal("took a permit of an empty pool")
		}
	}
	if !p.Withdraw(waiters[1]) {
		t.Error("a waiter without a permit cannot be withdrawn")
	}
	p.Give()
	if p.TryTake() {
		t.Error("a later caller overtook a waiter")
	}
	p.Give()
	p.Give()
	if want := []int{0, 2}; !slices.Equal(granted, want) || p.Free() != 1 {
		t.Errorf("granted to %d, want %d, and %d are free", granted, want, p.Free())
	}
	if p.Withdraw(waiters[0]) {
		t.Error("a waiter with a permit was withdrawn")
	}
}

// TestWait: a wait ends with a permit, or without one when done is closed.
func TestWait(t *testing.T) {
	var p Pool
	done := make(chan struct{})
	close(done)
	if p.Wait(done) {
		t.Error("a wait ended by done took a permit")
	}
	got := make(chan bool)
	go func() { got <- p.Wait(nil) }()
	p.Give()
	if !<-got || p.Free() != 0 {
		t.Errorf("a wait ended, and %d are free", p.Free())
	}
}

// TestClientsAlternate: permits that are given back go to the waiting clients alternately, and within the
// line of a client to the waiter that came first. A withdrawn waiter gets no permit, a permit is free only
// while no waiter waits, and TryTake overtakes no waiter.
func TestClientsAlternate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Pool
		const permits = 3
		p.Add(permits)
		type ticket struct {
			Waiter
			number int
		}
		var (
			lines    [4][]*ticket // by client
			rotation []uint32     // clients that wait, the next one first
			taken    int
			numbers  int
			grants   uint64
			granted  *ticket
			old      *ticket // one that was granted
		)
		leave := func(client uint32, i int) *ticket {
			w := lines[client][i]
			lines[client] = slices.Delete(lines[client], i, i+1)
			if len(lines[client]) == 0 {
				rotation = slices.DeleteFunc(rotation, func(c uint32) bool { return c == client })
			}
			return w
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				numbers++
				w := &ticket{number: numbers}
				w.Client = uint32(rapid.IntRange(0, len(lines)-1).Draw(t, "client"))
				w.Granted = func() { granted = w }
				ok := p.Take(&w.Waiter)
				if free := taken < permits; ok != free {
					t.Fatalf("took %v, and %d of %d are taken", ok, taken, permits)
				}
				if ok {
					taken++
					return
				}
				if len(lines[w.Client]) == 0 {
					rotation = append(rotation, w.Client)
				}
				lines[w.Client] = append(lines[w.Client], w)
			},
			"try": func(t *rapid.T) {
				ok := p.TryTake()
				if ok != (taken < permits) {
					t.Fatalf("took %v, and %d of %d are taken", ok, taken, permits)
				}
				if ok {
					taken++
				}
			},
			"give": func(t *rapid.T) {
				if taken == 0 {
					t.Skip()
				}
				taken--
				var want *ticket
				if len(rotation) > 0 {
					next := rotation[0]
					rotation = append(rotation[1:], next)
					want = leave(next, 0)
				}
				granted = nil
				p.Give()
				if granted != want {
					t.Fatalf("granted to %+v, want %+v", granted, want)
				}
				if want != nil {
					old = want
					taken++
					grants++
				}
			},
			"withdraw": func(t *rapid.T) {
				if len(rotation) == 0 {
					t.Skip()
				}
				client := rapid.SampledFrom(rotation).Draw(t, "client")
				w := leave(client, rapid.IntRange(0, len(lines[client])-1).Draw(t, "waiter"))
				if !p.Withdraw(&w.Waiter) || p.Withdraw(&w.Waiter) {
					t.Fatal("a waiter was withdrawn twice")
				}
			},
			"": func(t *rapid.T) {
				if free := p.Free(); free != permits-taken || free > 0 && len(rotation) > 0 {
					t.Fatalf("%d are free, %d of %d are taken, %d clients wait", free, taken, permits, len(rotation))
				}
				waiting := 0
				for _, l := range lines {
					waiting += len(l)
				}
				if n, g := p.Waiting(); n != waiting || g != grants {
					t.Fatalf("%d wait and %d were granted, want %d and %d", n, g, waiting, grants)
				}
				if old != nil && p.Withdraw(&old.Waiter) {
					t.Fatal("a waiter that was granted something gives up")
				}
			},
		})
	})
}
