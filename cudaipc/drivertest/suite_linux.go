package drivertest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Factory opens a new driver.
type Factory func() (cudaipc.Driver, error)

// Breaker is a driver that can make a device fail for good. Sticky failures are tested with such
// drivers.
type Breaker interface {
	Break(uuid cudaipc.UUID, err error) error
}

// patience ends a test whose driver hangs.
const patience = 30 * time.Second

// Run runs the suite.
func Run(t *testing.T, open Factory) {
	t.Helper()
	for _, c := range []struct {
		name string
		run  func(*rig)
	}{
		{"probe", testProbe},
		{"probe ends", testProbeEnds},
		{"open", testOpen},
		{"open twice", testOpenTwice},
		{"arena", testArena},
		{"arena of this process", testArenaHere},
		{"arena in another process", testArenaThere},
		{"arena of another process", testArenaFromThere},
		{"no arena", testNoArena},
		{"without arenas", testWithoutArenas},
		{"allocation", testAllocation},
		{"handle in another process", testHandleThere},
		{"handle of another process", testHandleFromThere},
		{"handle of this process", testHandleHere},
		{"handles are counted", testHandleCounted},
		{"handle of freed memory", testHandleFreed},
		{"handle of the dead", testHandleOfTheDead},
		{"no handle", testNoHandle},
		{"without handles", testWithoutHandles},
		{"copies", testCopies},
		{"copy of rows", testRows},
		{"copies that make no sense", testBadCopies},
		{"copy of plain memory", testPlainMemory},
		{"peers", testPeers},
		{"write behind a copy", testWriteBehindCopy},
		{"wait holds back", testWaitHoldsBack},
		{"words in a circle", testWordsInACircle},
		{"streams take turns", testTurns},
		{"word of another process", testWordFromThere},
		{"words that are none", testBadWords},
		{"without words", testWithoutWords},
		{"event without a record", testFreshEvent},
		{"event holds back", testEventHoldsBack},
		{"event is taken as it is", testEventAsItIs},
		{"event of a closed stream", testEventOfClosedStream},
		{"wrapped stream", testWrappedStream},
		{"closing a wrapped stream", testCloseWrapped},
		{"default streams", testDefaultStreams},
		{"streams of other devices", testForeignStream},
		{"register", testRegister},
		{"register twice", testRegisterTwice},
		{"register for reading", testRegisterReadOnly},
		{"synchronize", testSynchronize},
		{"out of memory", testOutOfMemory},
		{"closed", testClosed},
		{"close twice", testCloseTwice},
		{"nothing is left", testNothingLeft},
		{"many at once", testManyAtOnce},
		{"sticky", testSticky},
		{"sticky elsewhere", testStickyElsewhere},
		{"sticky in another process", testStickyThere},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(newRig(t, open)) })
	}
}

// rig is a driver with its first device open, and the helpers of tests. Objects that a rig makes
// are closed with the test, last first.
type rig struct {
	*testing.T
	open   Factory
	driver cudaipc.Driver
	all    []cudaipc.Caps
	caps   cudaipc.Caps
	dev    cudaipc.Device
	ctx    context.Context
}

func newRig(t *testing.T, open Factory) *rig {
	t.Helper()
	r := &rig{T: t, open: open}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	r.ctx = ctx
	var err error
	if r.driver, err = open(); err != nil {
		r.skipIfNone(err)
		t.Fatalf("open the driver: %v", err)
	}
	r.closeLater("driver", r.driver.Close)
	if r.all, err = r.driver.Probe(ctx); err != nil {
		r.skipIfNone(err)
		t.Fatalf("Probe: %v", err)
	}
	if len(r.all) == 0 {
		t.Fatal("Probe found no device, without an error")
	}
	r.caps = r.all[0]
	r.dev = r.device(r.caps.Device)
	return r
}

func (r *rig) skipIfNone(err error) {
	r.Helper()
	for _, none := range []error{cudaipc.ErrNotBuilt, cudaipc.ErrNoDriver, cudaipc.ErrNoDevice} {
		if errors.Is(err, none) {
			r.Skipf("not here: %v", err)
		}
	}
}

// closeLater closes an object with the test. Only a failed device may return an error.
func (r *rig) closeLater(what string, closing func() error) {
	r.Cleanup(func() {
		if err := unlessSticky(closing()); err != nil {
			r.Errorf("close the %s: %v", what, err)
		}
	})
}

// need skips the test if the device lacks a feature.
func (r *rig) need(field string) {
	r.Helper()
	if why, missing := r.caps.Why[field]; missing {
		r.Skipf("no %s: %s", field, why)
	}
}

// needMissing skips the test if the device has a feature.
func (r *rig) needMissing(field string) {
	r.Helper()
	if _, missing := r.caps.Why[field]; !missing {
		r.Skipf("the device has %s", field)
	}
}

func (r *rig) device(uuid cudaipc.UUID) cudaipc.Device {
	r.Helper()
	dev, err := r.driver.Open(uuid)
	if err != nil {
		r.Fatalf("Open(%v): %v", uuid, err)
	}
	r.closeLater("device", dev.Close)
	return dev
}

func (r *rig) arena(sizeBytes int64) cudaipc.Arena {
	r.Helper()
	r.need("Arenas")
	a, err := r.dev.NewArena(sizeBytes)
	if err != nil {
		r.Fatalf("NewArena(%d): %v", sizeBytes, err)
	}
	r.closeLater("arena", a.Close)
	return a
}

func (r *rig) importArena(fd int, sizeBytes int64) cudaipc.Arena {
	r.Helper()
	a, err := r.dev.ImportArena(fd, sizeBytes)
	if err != nil {
		r.Fatalf("ImportArena: %v", err)
	}
	r.closeLater("imported arena", a.Close)
	return a
}

func (r *rig) alloc(sizeBytes int64) cudaipc.Ptr {
	r.Helper()
	p, err := r.dev.Alloc(sizeBytes)
	if err != nil {
		r.Fatalf("Alloc(%d): %v", sizeBytes, err)
	}
	r.closeLater("allocation", func() error { return r.dev.Free(p) })
	return p
}

func (r *rig) stream() cudaipc.Stream {
	r.Helper()
	s, err := r.dev.NewStream()
	if err != nil {
		r.Fatalf("NewStream: %v", err)
	}
	r.closeLater("stream", s.Close)
	return s
}

func (r *rig) event() cudaipc.Event {
	r.Helper()
	e, err := r.dev.NewEvent()
	if err != nil {
		r.Fatalf("NewEvent: %v", err)
	}
	r.closeLater("event", e.Close)
	return e
}

// host registers new memory.
func (r *rig) host(sizeBytes int) ([]byte, cudaipc.HostMemory) {
	r.Helper()
	r.need("RegisterHost")
	mem := r.pages(sizeBytes)
	h, err := r.dev.RegisterHost(mem, false)
	if err != nil {
		r.Fatalf("RegisterHost: %v", err)
	}
	r.closeLater("host memory", h.Close)
	return mem, h
}

func (r *rig) submit(s cudaipc.Stream, ops ...cudaipc.Op) {
	r.Helper()
	for _, op := range ops {
		if op.Kind == cudaipc.OpWait {
			r.releaseOnFailure(op.Word.Host, op.Value)
		}
	}
	if err := s.Submit(ops...); err != nil {
		r.Fatalf("Submit: %v", err)
	}
}

// releaseOnFailure lets no stream wait after a failed test: freeing the rig's objects would wait
// for it.
func (r *rig) releaseOnFailure(word *atomic.Uint32, v uint32) {
	r.Cleanup(func() {
		if r.Failed() {
			word.Store(v)
		}
	})
}

func (r *rig) synchronize(s cudaipc.Stream) {
	r.Helper()
	if err := s.Synchronize(r.ctx); err != nil {
		r.Fatalf("Synchronize: %v", err)
	}
}

// wantBlocked checks that a stream waits. A driver that is right never fails here; a wrong one has
// a short time to show it.
func (r *rig) wantBlocked(s cudaipc.Stream) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Millisecond)
	defer cancel()
	if err := s.Synchronize(ctx); !errors.Is(err, context.DeadlineExceeded) {
		r.Fatalf("Synchronize, of a stream that is held back: %v", err)
	}
}

// wantErr checks that the error is one of those of package cudaipc, in an Error.
func (r *rig) wantErr(what string, err error, wanted ...error) {
	r.Helper()
	for _, want := range wanted {
		if !errors.Is(err, want) {
			continue
		}
		if own := (*cudaipc.Error)(nil); !errors.As(err, &own) {
			r.Errorf("%s: %v is no *cudaipc.Error", what, err)
		} else if own.Call == "" || own.Name == "" {
			r.Errorf("%s: %v does not say which call failed, and how", what, err)
		}
		return
	}
	r.Errorf("%s: %v, want %v", what, err, wanted)
}

// await waits until the CPU sees a word reach a value.
func (r *rig) await(w cudaipc.Word, v uint32) {
	r.Helper()
	for !w.Reached(v) {
		if r.ctx.Err() != nil {
			r.Fatalf("the word is %d and will not come to %d", w.Host.Load(), v)
		}
		yield()
	}
}

// Short forms of operations.

func copyOp(dst, src cudaipc.Ptr, n int64) cudaipc.Op {
	return cudaipc.Op{Kind: cudaipc.OpCopy, Dst: dst, Src: src, Bytes: n}
}

func writeOp(w cudaipc.Word, v uint32) cudaipc.Op {
	return cudaipc.Op{Kind: cudaipc.OpWrite, Word: w, Value: v}
}

func waitOp(w cudaipc.Word, v uint32) cudaipc.Op {
	return cudaipc.Op{Kind: cudaipc.OpWait, Word: w, Value: v}
}

func recordOp(e cudaipc.Event) cudaipc.Op { return cudaipc.Op{Kind: cudaipc.OpRecord, Event: e} }

func awaitOp(e cudaipc.Event) cudaipc.Op { return cudaipc.Op{Kind: cudaipc.OpAwait, Event: e} }
