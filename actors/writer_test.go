package actors_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// roomy has space for five payloads of twelveKB and a little more.
var roomy = shmstore.Options{ArenaBytes: 64 << 10, MaxObjectBytes: 40 << 10}

const twelveKB = 12 << 10

// pending is a reservation that is requested on a goroutine of its own.
type pending struct {
	got  []shmstore.Reservation
	err  error
	over bool
}

// request starts a waiter in the bubble of the test, and returns when it is in the
// writer's queue or answered.
func (h *host) request(t *testing.T, done, cancel <-chan struct{}, n, size int) *pending {
	t.Helper()
	w := &pending{}
	go func() {
		w.got, w.err = h.Reserve(done, cancel, nil, n, size, codec.IDRaw)
		w.over = true
	}()
	synctest.Wait()
	return w
}

func (w *pending) mustWait(t *testing.T, name string) {
	t.Helper()
	if w.over {
		t.Errorf("%s was answered with %d reservations and %v, and should wait", name, len(w.got), w.err)
	}
}

func (w *pending) mustBeGranted(t *testing.T, name string) {
	t.Helper()
	if !w.over || w.err != nil || len(w.got) == 0 {
		t.Fatalf("%s should be granted: answered %v, %d reservations, error %v", name, w.over, len(w.got), w.err)
	}
}

// TestCanceledReserveTakesFreeSpace: a Reserve whose cancel channel is closed still gets free
// space when the writer tries it.
func TestCanceledReserveTakesFreeSpace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, roomy)
		hold, late := make(chan struct{}), make(chan struct{})
		go func() { _ = h.Do(func(*shmstore.Store) { <-hold }) }()
		synctest.Wait()
		close(late)
		w := h.request(t, nil, late, 1, twelveKB)
		w.mustWait(t, "a canceled Reserve, before the writer has tried it,")
		close(hold)
		synctest.Wait()
		w.mustBeGranted(t, "a Reserve whose space was free before the writer tried it")
		w.got[0].Abort()
	})
}

func TestWriterGrants(t *testing.T) {
	h := newHost(t, roomy)
	first := h.one(t, 100)
	got, err := h.Reserve(nil, nil, []shmstore.Reservation{*first}, 3, 200, codec.IDMsgpack)
	if err != nil || len(got) != 4 || got[0] != *first {
		t.Fatalf("Reserve of 3 behind one: %d reservations, %v", len(got), err)
	}
	got[0].Abort()
	for i := range got[1:] {
		r := &got[1+i]
		if len(r.Bytes()) != 200 {
			t.Errorf("space for %d bytes, want 200", len(r.Bytes()))
		}
		handle, err := r.Commit(150, 1)
		if err != nil {
			t.Fatal(err)
		}
		if handle.Size != 150 || codec.ID(handle.Codec) != codec.IDMsgpack {
			t.Errorf("handle %v, want 150 bytes of codec %v", handle, codec.IDMsgpack)
		}
		lease, err := h.store.Local().Take(handle)
		if err != nil {
			t.Fatal(err)
		}
		lease.Release()
	}
	// If not all fit, Reserve grants some.
	some, err := h.Reserve(nil, nil, nil, 100, twelveKB, codec.IDRaw)
	if err != nil || len(some) != 5 {
		t.Errorf("Reserve of 100, where 5 fit: %d, %v", len(some), err)
	}
	abortAll(some)
}

// TestWriterServesInOrder lets small reservations that would fit wait behind a
// large one that does not.
func TestWriterServesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, roomy)
		held := h.occupy(t, twelveKB)
		little := h.request(t, nil, nil, 1, 1000)
		little.mustBeGranted(t, "what fits into the gap at the end")
		abortAll(little.got)

		large := h.request(t, nil, nil, 1, 3*twelveKB)
		larger := h.request(t, nil, nil, 1, 2*twelveKB)
		small := h.request(t, nil, nil, 1, 1000) // fits all the time
		large.mustWait(t, "the large one")
		for i := range 3 {
			small.mustWait(t, "the small one behind")
			held[i].Abort()
			synctest.Wait()
		}
		large.mustBeGranted(t, "the large one")
		larger.mustWait(t, "the one behind")
		small.mustWait(t, "the small one behind both")
		abortAll(large.got)
		synctest.Wait()
		larger.mustBeGranted(t, "the one behind")
		small.mustBeGranted(t, "the small one, last")
		abortAll(slices.Concat(larger.got, small.got, held[3:]))
	})
}

// TestWriterServesOneForEachRelease queues reservations of equal size: each released
// lease makes space for exactly the one that has waited longest.
func TestWriterServesOneForEachRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, roomy)
		var leases []shmstore.Lease
		for _, r := range h.occupy(t, twelveKB) {
			handle, err := r.Commit(twelveKB, 1)
			if err != nil {
				t.Fatal(err)
			}
			lease, err := h.store.Local().Take(handle)
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		}
		waiters := make([]*pending, len(leases))
		for i := range waiters {
			waiters[i] = h.request(t, nil, nil, 1, twelveKB)
		}
		for i := range leases {
			leases[i].Release()
			synctest.Wait()
			for j, w := range waiters {
				if w.over != (j <= i) {
					t.Errorf("after %d releases, waiter %d was answered: %v", i+1, j, w.over)
				}
			}
		}
		for i, w := range waiters {
			w.mustBeGranted(t, fmt.Sprint("waiter ", i))
			abortAll(w.got)
		}
	})
}

// TestWriterSkipsCanceledReservations cancels a large reservation before a small one:
// no space is released, so only the cancellation can unblock the small one.
func TestWriterSkipsCanceledReservations(t *testing.T) {
	for _, by := range []string{"done", "cancel"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, roomy)
				held := h.occupy(t, twelveKB)
				end := make(chan struct{})
				var cancel chan struct{}
				done := end
				if by == "cancel" {
					done, cancel = nil, end
				}
				large := h.request(t, done, cancel, 1, 3*twelveKB)
				between := h.request(t, done, cancel, 1, 2*twelveKB)
				small := h.request(t, nil, nil, 1, 1000)
				last := h.request(t, done, cancel, 1, twelveKB)
				small.mustWait(t, "the small one")
				before := h.stats(t).ReservedTotal

				close(end)
				synctest.Wait()
				for _, w := range []*pending{large, between, last} {
					if !w.over || !errors.Is(w.err, actors.ErrCanceled) || len(w.got) != 0 {
						t.Errorf("a canceled reservation: answered %v, %d reservations, error %v", w.over, len(w.got), w.err)
					}
				}
				small.mustBeGranted(t, "the small one, the only one in the queue")
				abortAll(held)
				synctest.Wait()
				if granted := h.stats(t).ReservedTotal - before; granted != 1 {
					t.Errorf("%d reservations were granted, want one", granted)
				}
				abortAll(small.got)
			})
		})
	}
}

// TestWriterCanceledLeavesSliceAlone cancels while the writer is about to answer: the
// writer must not append to the slice then.
func TestWriterCanceledLeavesSliceAlone(t *testing.T) {
	const rounds, extent = 200, 512 // large enough that its grant takes a while
	h := newHost(t, shmstore.Options{ArenaBytes: 1 << 20, Slots: 2 * extent})
	canceled := 0
	for round := range rounds {
		backing := make([]shmstore.Reservation, extent)
		busy, idle, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() { // keeps the writer busy, on another goroutine
			if err := h.Do(func(*shmstore.Store) { close(busy); <-idle }); err != nil {
				t.Error(err)
			}
		})
		<-busy
		group.Go(func() {
			runtime.Gosched() // to Reserve, which has to wait for the writer
			close(idle)
			spin(round % 64)
			close(end)
		})
		got, err := h.Reserve(end, nil, backing[:0], extent, 100, codec.IDRaw)
		group.Wait()
		h.stats(t) // the writer is done with it
		switch {
		case errors.Is(err, actors.ErrCanceled):
			canceled++
			if backing[0] != (shmstore.Reservation{}) {
				t.Fatal("the writer wrote into the slice of a caller that had given up")
			}
		case err != nil:
			t.Fatal(err)
		default:
			abortAll(got)
		}
	}
	t.Logf("%d of %d gave up", canceled, rounds)
}

// TestWriterRefusesAtOnce makes requests that no release can satisfy, with and without
// waiting reservations.
func TestWriterRefusesAtOnce(t *testing.T) {
	tests := []struct {
		name    string
		n, size int
		want    error
	}{
		{name: "too large", n: 1, size: 40<<10 + 1, want: shmstore.ErrTooLarge},
		{name: "negative size", n: 1, size: -1, want: shmstore.ErrSize},
		{name: "none", n: 0, size: 1, want: shmstore.ErrSize},
	}
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, roomy)
		check := func() {
			for _, tt := range tests {
				w := h.request(t, nil, nil, tt.n, tt.size)
				if !w.over || !errors.Is(w.err, tt.want) || len(w.got) != 0 {
					t.Errorf("%s: answered %v with %d reservations and error %v, want %v", tt.name, w.over, len(w.got), w.err, tt.want)
				}
			}
		}
		check()
		held := h.occupy(t, twelveKB)
		first := h.request(t, nil, nil, 1, twelveKB)
		check()
		abortAll(held)
		synctest.Wait()
		first.mustBeGranted(t, "the one that waited")
		abortAll(first.got)
	})
}

func TestWriterCloseAnswersAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, roomy)
		held := h.occupy(t, twelveKB)
		var waiters []*pending
		for range 3 {
			waiters = append(waiters, h.request(t, nil, nil, 1, twelveKB))
		}
		gate := make(chan struct{})
		inDo := make(chan error, 1)
		go func() { inDo <- h.Do(func(*shmstore.Store) { <-gate }) }()
		synctest.Wait()
		// These wait in the mailbox behind the function that runs.
		waiters = append(waiters, h.request(t, nil, nil, 1, twelveKB))
		behind := make(chan error, 1)
		go func() { behind <- h.Do(func(*shmstore.Store) { t.Error("Do ran after Close") }) }()
		synctest.Wait()

		ctx, cancel := context.WithCancel(t.Context())
		closed := make(chan error, 2)
		for range 2 {
			go func() { closed <- h.Close(ctx) }()
		}
		synctest.Wait()
		cancel()
		for range 2 {
			if err := <-closed; !errors.Is(err, context.Canceled) {
				t.Errorf("Close while a function runs = %v, want the context's error", err)
			}
		}
		close(gate)
		closeNow(t, h)
		synctest.Wait()
		for i, w := range waiters {
			if !w.over || !errors.Is(w.err, actors.ErrStopped) || len(w.got) != 0 {
				t.Errorf("waiter %d: answered %v, %d reservations, error %v; want ErrStopped", i, w.over, len(w.got), w.err)
			}
		}
		if err := <-inDo; err != nil {
			t.Errorf("the function that was running when the writer closed: %v", err)
		}
		if err := <-behind; !errors.Is(err, actors.ErrStopped) {
			t.Errorf("Do behind the running function = %v, want ErrStopped", err)
		}
		abortAll(held)

		if _, err := h.Reserve(nil, nil, nil, 1, 1, codec.IDRaw); !errors.Is(err, actors.ErrStopped) {
			t.Errorf("Reserve after Close = %v, want ErrStopped", err)
		}
		if err := h.Do(func(*shmstore.Store) { t.Error("Do ran after Close") }); !errors.Is(err, actors.ErrStopped) {
			t.Errorf("Do after Close = %v, want ErrStopped", err)
		}
		for range 50 {
			if err := h.Close(ctx); err != nil {
				t.Fatalf("Close of a closed writer, with an ended context: %v", err)
			}
		}
	})
}

// TestWriterDoRunsAlone counts without a lock: -race reports it if two functions, or a
// function and a reservation, run at once.
func TestWriterDoRunsAlone(t *testing.T) {
	const callers, each = 8, 200
	h := newHost(t, roomy)
	count := 0
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			for range each {
				if err := h.Do(func(s *shmstore.Store) { count++; s.FreeUnused() }); err != nil {
					t.Error(err)
				}
				h.one(t, 100).Abort()
			}
		})
	}
	group.Wait()
	if count != callers*each {
		t.Errorf("%d functions ran, want %d", count, callers*each)
	}
}

// TestWriterDoPanics lets a function panic while a reservation waits: the caller gets
// the panic, and the writer goes on.
func TestWriterDoPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, roomy)
		held := h.occupy(t, twelveKB)
		w := h.request(t, nil, nil, 1, twelveKB)
		cause := errors.New("broken")
		for range 20 { // more than the library would restart an actor
			func() {
				defer func() {
					p, ok := recover().(*actors.Panic)
					if !ok || !errors.Is(p, cause) || !strings.Contains(string(p.Stack), "breakDown") {
						t.Errorf("Do panicked with %v, want a *Panic with the cause and its stack", p)
					}
				}()
				_ = h.Do(func(*shmstore.Store) { breakDown(cause) })
				t.Error("Do returned")
			}()
		}
		w.mustWait(t, "the waiting one")
		abortAll(held)
		synctest.Wait()
		w.mustBeGranted(t, "the one that waited all along")
		abortAll(w.got)
	})
}

func breakDown(cause error) { panic(cause) }

// TestWriterSurvivesGoexit ends the writer's goroutine in a function of Do.
func TestWriterSurvivesGoexit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, roomy)
		held := h.occupy(t, twelveKB)
		w := h.request(t, nil, nil, 1, twelveKB)
		if err := h.Do(func(*shmstore.Store) { runtime.Goexit() }); !errors.Is(err, actors.ErrStopped) {
			t.Errorf("Do of a function that did not return = %v, want ErrStopped", err)
		}
		abortAll(held)
		synctest.Wait()
		w.mustBeGranted(t, "the one that waited all along")
		abortAll(w.got)
	})
}

// TestWriterSeesTheSecondRelease releases one payload and, a moment later, another,
// while a reservation waits for the space of both: the second release must not get
// lost in the retry that the first one caused. If it does, the test hangs.
func TestWriterSeesTheSecondRelease(t *testing.T) {
	const rounds = 1000
	h := newHost(t, shmstore.Options{ArenaBytes: 4 << 10, MaxObjectBytes: 4000})
	for round := range rounds {
		first, second := h.one(t, 1500), h.one(t, 1500)
		var group sync.WaitGroup
		group.Go(func() { h.one(t, 3500).Abort() })
		h.stats(t)
		first.Abort()
		spin(round % 128)
		second.Abort()
		group.Wait()
	}
}

// spin takes about a tenth of a microsecond for each n, so that two goroutines meet at
// a different point each time.
func spin(n int) {
	var passed atomic.Int64
	for passed.Load() < int64(n)*20 {
		passed.Add(1)
	}
}

// TestWriterLosesNoWakeUp makes many goroutines wait for space in a store for one or
// two payloads, so that nearly every release meets a writer that is about to wait. A
// lost wake-up leaves all of them waiting.
func TestWriterLosesNoWakeUp(t *testing.T) {
	const senders, each = 8, 300
	noLeaks(t)
	h := newHost(t, shmstore.Options{ArenaBytes: 4 << 10, Slots: 4, MaxObjectBytes: 2 << 10})
	var group sync.WaitGroup
	for s := range senders {
		group.Go(func() {
			p := h.NewProducer()
			defer p.Close()
			for i := range each {
				h.sendAndReceive(t, p, s, i)
			}
		})
	}
	group.Wait()
	err := h.Do(func(s *shmstore.Store) {
		for _, v := range s.Check() {
			t.Errorf("Check: %v", v)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// sendAndReceive reserves, writes, reads and releases one payload, from the writer or a
// producer's extents. Now and then it cancels the reservation.
func (h *host) sendAndReceive(t *testing.T, p *actors.Producer, sender, i int) {
	size := 1 + (sender*611+i*37)%2000
	var cancel chan struct{}
	if i%7 == 3 {
		cancel = make(chan struct{})
		go close(cancel)
	}
	var r shmstore.Reservation
	var err error
	if (sender+i)%2 == 0 {
		r, err = p.Reserve(nil, cancel, size, codec.IDRaw)
	} else {
		var got []shmstore.Reservation
		if got, err = h.Reserve(cancel, nil, nil, 1, size, codec.IDRaw); err == nil {
			r = got[0]
		}
	}
	switch {
	case errors.Is(err, actors.ErrCanceled) && cancel != nil:
		return
	case err != nil:
		t.Error(err)
		return
	case i%5 == 0:
		r.Abort()
		return
	}
	for j := range r.Bytes() {
		r.Bytes()[j] = byte(sender)
	}
	handle, err := r.Commit(size, 1)
	if err != nil {
		t.Error(err)
		return
	}
	lease, err := h.store.Local().Take(handle)
	if err != nil {
		t.Error(err)
		return
	}
	runtime.Gosched()
	for _, b := range lease.Bytes() {
		if b != byte(sender) {
			t.Errorf("a payload of sender %d has a byte of sender %d", sender, b)
			break
		}
	}
	lease.Release()
}
