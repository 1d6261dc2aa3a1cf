package drivertest

import (
	"context"
	"errors"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// testSynchronize: Synchronize waits for all submitted operations, and ends with its context.
func testSynchronize(r *rig) {
	idle := r.stream()
	r.synchronize(idle)
	gate := r.words(1)[0]
	s := r.stream()
	r.submit(s, waitOp(gate, 1))
	gone, cancel := context.WithCancel(r.ctx)
	answer := make(chan error)
	go func() { answer <- s.Synchronize(gone) }()
	cancel()
	if err := <-answer; !errors.Is(err, context.Canceled) {
		r.Errorf("Synchronize with a canceled context: %v", err)
	}
	gate.Host.Store(1)
	r.synchronize(s)
}

var errBroken = errors.New("broken for a test")

func (r *rig) breaker() Breaker {
	r.Helper()
	b, ok := r.driver.(Breaker)
	if !ok {
		r.Skipf("%s cannot have a device fail", r.driver.Name())
	}
	return b
}

// testSticky: after a failure of the device all calls return it, and none hangs.
func testSticky(r *rig) {
	b := r.breaker()
	words := r.words(2)
	s, u, e, p := r.stream(), r.stream(), r.event(), r.alloc(mib)
	answer := make(chan error)
	r.submit(s, waitOp(words[0], 1), copyOp(p, p, 1), writeOp(words[1], 1), recordOp(e))
	r.submit(u, awaitOp(e))
	go func() { answer <- s.Synchronize(r.ctx) }()
	if err := r.dev.Err(); err != nil {
		r.Fatalf("Err, before anything failed: %v", err)
	}
	if err := b.Break(r.caps.Device, errBroken); err != nil {
		r.Fatal(err)
	}
	r.wantErr("a Synchronize that waited", <-answer, cudaipc.ErrSticky)
	r.wantErr("Synchronize", u.Synchronize(r.ctx), cudaipc.ErrSticky)
	r.wantErr("Submit", u.Submit(writeOp(words[1], 1)), cudaipc.ErrSticky)
	r.wantErr("Err", r.dev.Err(), cudaipc.ErrSticky)
	_, err := e.Done()
	r.wantErr("Event.Done", err, cudaipc.ErrSticky)
	for call, err := range eachCall(r, r.dev) {
		r.wantErr(call, err, cudaipc.ErrSticky)
	}
	if words[1].Host.Load() != 0 {
		r.Error("an operation ran behind the failure")
	}
}

// testStickyElsewhere: other devices continue to work.
func testStickyElsewhere(r *rig) {
	b := r.breaker()
	if len(r.all) < 2 {
		r.Skip("there is one device")
	}
	bad := r.device(r.all[1].Device)
	if err := b.Break(r.all[1].Device, errBroken); err != nil {
		r.Fatal(err)
	}
	r.wantErr("Err of the device", bad.Err(), cudaipc.ErrSticky)
	if err := r.dev.Err(); err != nil {
		r.Errorf("Err of the other device: %v", err)
	}
	p := r.alloc(mib)
	r.fill(p, 1, mib)
	r.check("on the other device", p, 1, mib)
}

// testStickyThere: other processes continue to work, with the memory that they share.
func testStickyThere(r *rig) {
	r.breaker()
	r.need("Arenas")
	other := r.peer()
	a := r.arena(mib)
	r.fill(a.Base(), 1, mib)
	other.ask(request{Do: doImportArena, Bytes: a.Bytes()}, a.FD())
	there, fd := other.ask(request{Do: doArena, Bytes: mib})
	other.ask(request{Do: doFill, Memory: there.Memory, Bytes: mib, Seed: 2})
	b := r.importArena(fd, there.Bytes)
	other.ask(request{Do: doBreak})
	if err := r.dev.Err(); err != nil {
		r.Errorf("Err, when the device failed in another process: %v", err)
	}
	r.check("one's own arena", a.Base(), 1, mib)
	r.check("an arena of the process where it failed", b.Base(), 2, mib)
}
