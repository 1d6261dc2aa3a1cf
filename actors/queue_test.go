package actors

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestQueueModel compares a queue with a slice.
func TestQueueModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue[*int]
		var model []*int
		next := 0
		pushSome := func(n int) {
			for range n {
				v := next
				next++
				q.push(&v)
				model = append(model, &v)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push":  func(t *rapid.T) { pushSome(1) },
			"burst": func(t *rapid.T) { pushSome(rapid.IntRange(2, 200).Draw(t, "n")) },
			"pop": func(t *rapid.T) {
				v, ok := q.pop()
				if ok != (len(model) > 0) {
					t.Fatalf("pop says %v, the model holds %d", ok, len(model))
				}
				if ok {
					if v != model[0] {
						t.Fatalf("pop = %d, want %d", *v, *model[0])
					}
					model = model[1:]
				}
			},
			"take": func(t *rapid.T) {
				dst := make([]*int, rapid.IntRange(0, 300).Draw(t, "room"))
				n := q.take(dst)
				if want := min(len(dst), len(model)); n != want {
					t.Fatalf("take = %d, want %d", n, want)
				}
				if !slices.Equal(dst[:n], model[:n]) {
					t.Fatalf("take moved other values than the %d oldest", n)
				}
				model = model[n:]
			},
			"": func(t *rapid.T) {
				if q.len() != len(model) {
					t.Fatalf("len = %d, want %d", q.len(), len(model))
				}
				checkBuffer(t, &q)
			},
		})
	})
}

// checkBuffer checks the invariants of the buffer.
func checkBuffer(t interface{ Fatalf(string, ...any) }, q *queue[*int]) {
	if n := len(q.buffer); n != 0 && (n < minQueueLength || bits.OnesCount(uint(n)) != 1) {
		t.Fatalf("buffer length %d is not a power of two from %d", n, minQueueLength)
	}
	held := 0
	for _, v := range q.buffer {
		if v != nil {
			held++
		}
	}
	if held != q.len() {
		t.Fatalf("the buffer retains %d values, the queue holds %d", held, q.len())
	}
}

func TestQueueShrinks(t *testing.T) {
	var q queue[*int]
	for range 1000 {
		q.push(new(int))
	}
	grown := len(q.buffer)
	if grown != 1024 {
		t.Fatalf("buffer length after 1000 pushes is %d, want 1024", grown)
	}
	for range 1000 {
		q.pop()
	}
	if len(q.buffer) != grown {
		t.Fatalf("buffer length is %d right after a burst, want %d still", len(q.buffer), grown)
	}
	for range 2 * shrinkWindow * grown {
		q.push(new(int))
		q.pop()
	}
	for range shrinkWindow * grown {
		q.push(new(int))
		q.pop()
	}
	if len(q.buffer) != minQueueLength {
		t.Errorf("buffer length is %d after long light traffic, want %d", len(q.buffer), minQueueLength)
	}
}

// TestQueueKeepsNeededBuffer checks that a buffer is not halved while bursts fill more
// than a quarter of it.
func TestQueueKeepsNeededBuffer(t *testing.T) {
	var q queue[*int]
	for burst := range 100 {
		if burst > 0 && len(q.buffer) != 512 {
			t.Fatalf("buffer length is %d after %d bursts of 300, want 512", len(q.buffer), burst)
		}
		for range 300 {
			q.push(new(int))
		}
		for q.len() > 0 {
			q.pop()
		}
	}
}

func TestQueueSteadyStateAllocatesNothing(t *testing.T) {
	var q queue[*int]
	v := new(int)
	dst := make([]*int, 64)
	allocs := testing.AllocsPerRun(1000, func() {
		for range dst {
			q.push(v)
		}
		q.take(dst)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per batch, want none", allocs)
	}
}
