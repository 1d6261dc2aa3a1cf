package pool

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
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

// TestTurnsOfClients: what is given back goes to the clients that wait in turns, and within the line
// of one client to the waiter that came first. A waiter that is withdrawn is granted nothing, a thing is
// free only while no waiter waits for it, and no later try overtakes a waiter.
func TestTurnsOfClients(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Pool[int]
		const things = 3
		p.Add(1, 2, 3)
		type ticket struct {
			Waiter[int]
			number int
		}
		var (
			lines   [4][]*ticket // by client
			turns   []uint32     // clients that wait, the next one first
			taken   []int
			numbers int
			grants  uint64
			granted *ticket
			old     *ticket // one that was granted
		)
		leave := func(client uint32, i int) *ticket {
			w := lines[client][i]
			lines[client] = slices.Delete(lines[client], i, i+1)
			if len(lines[client]) == 0 {
				turns = slices.DeleteFunc(turns, func(c uint32) bool { return c == client })
			}
			return w
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				numbers++
				w := &ticket{number: numbers}
				w.Client = uint32(rapid.IntRange(0, len(lines)-1).Draw(t, "client"))
				w.Granted = func(v int) { granted, taken = w, append(taken, v) }
				v, ok := p.Take(&w.Waiter)
				if free := len(taken) < things; ok != free {
					t.Fatalf("took %v, and %d of %d are taken", ok, len(taken), things)
				}
				if ok {
					taken = append(taken, v)
					return
				}
				if len(lines[w.Client]) == 0 {
					turns = append(turns, w.Client)
				}
				lines[w.Client] = append(lines[w.Client], w)
			},
			"try": func(t *rapid.T) {
				v, ok := p.TryTake()
				if ok != (len(taken) < things) {
					t.Fatalf("took %v, and %d of %d are taken", ok, len(taken), things)
				}
				if ok {
					taken = append(taken, v)
				}
			},
			"give": func(t *rapid.T) {
				if len(taken) == 0 {
					t.Skip()
				}
				v := taken[0]
				taken = taken[1:]
				var want *ticket
				if len(turns) > 0 {
					next := turns[0]
					turns = append(turns[1:], next)
					want = leave(next, 0)
				}
				granted = nil
				p.Give(v)
				if granted != want {
					t.Fatalf("granted to %+v, want %+v", granted, want)
				}
				if want != nil {
					old = want
					grants++
				}
			},
			"withdraw": func(t *rapid.T) {
				if len(turns) == 0 {
					t.Skip()
				}
				client := rapid.SampledFrom(turns).Draw(t, "client")
				w := leave(client, rapid.IntRange(0, len(lines[client])-1).Draw(t, "waiter"))
				if !p.Withdraw(&w.Waiter) || p.Withdraw(&w.Waiter) {
					t.Fatal("a waiter gives up once")
				}
			},
			"": func(t *rapid.T) {
				if free := p.Free(); free != things-len(taken) || free > 0 && len(turns) > 0 {
					t.Fatalf("%d are free, %d of %d are taken, %d clients wait", free, len(taken), things, len(turns))
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
