package hang

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const bound = 16 * time.Second

// program is the watched program of the tests.
type program struct {
	mu       sync.Mutex
	moved    uint64
	waits    string
	stuck    chan struct{} // nil: a probe returns at once
	began    int           // probes
	reported []bool        // by changed
}

// set changes the program between two probes.
func (p *program) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *program) probe() (moved uint64, waits string) {
	var stuck chan struct{}
	p.set(func() { p.began++; stuck = p.stuck })
	if stuck != nil {
		<-stuck
	}
	p.set(func() { moved, waits = p.moved, p.waits })
	return moved, waits
}

// watched runs a test in a synctest bubble, after the first probe, which finds no waiting work.
func watched(t *testing.T, test func(p *program, w *Watcher)) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		p := &program{}
		w := Watch(bound, p.probe, func(_ Hang, hangs bool) { p.set(func() { p.reported = append(p.reported, hangs) }) })
		defer w.Close()
		synctest.Wait()
		test(p, w)
	})
}

func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestHangs: a hang is reported after the bound without progress while work waits.
func TestHangs(t *testing.T) {
	watched(t, func(p *program, w *Watcher) {
		p.set(func() { p.waits = "a request" })
		pass(bound + time.Second/2) // the probe of the first second is the first that finds the hang
		if h, hangs := w.Hang(); hangs {
			t.Errorf("before the bound: %+v", h)
		}
		pass(time.Second)
		if h, hangs := w.Hang(); !hangs || h.Lasted < bound || h.Waits != "a request" {
			t.Errorf("%+v, %v", h, hangs)
		}
		p.set(func() { p.moved++ })
		pass(2 * time.Second) // the end is reported after the probe that finds it
		if h, hangs := w.Hang(); hangs {
			t.Errorf("a hang after progress: %+v", h)
		}
		if len(p.reported) != 2 || !p.reported[0] || p.reported[1] {
			t.Errorf("changed was called with %v, want the begin and the end", p.reported)
		}
	})
}

// TestMovementIsNoHang: neither waiting work with progress nor a lack of progress without waiting
// work is a hang.
func TestMovementIsNoHang(t *testing.T) {
	watched(t, func(p *program, w *Watcher) {
		for range 4 * Probes {
			p.set(func() { p.moved, p.waits = p.moved+1, "a request" })
			pass(time.Second)
		}
		p.set(func() { p.waits = "" })
		pass(4 * bound)
		if h, hangs := w.Hang(); hangs || len(p.reported) > 0 {
			t.Errorf("%+v, reported %v", h, p.reported)
		}
	})
}

// TestProbeThatDoesNotReturn: a blocked probe counts as no progress, no other probe is started, and
// neither Hang nor Close waits for it.
func TestProbeThatDoesNotReturn(t *testing.T) {
	watched(t, func(p *program, w *Watcher) {
		began, stuck := p.began, make(chan struct{})
		p.set(func() { p.stuck = stuck })
		pass(bound + 2*time.Second)
		if h, hangs := w.Hang(); !hangs || h.Waits != "" {
			t.Errorf("%+v, %v", h, hangs)
		}
		if p.began != began+1 {
			t.Errorf("%d probes were started after the blocked one", p.began-began-1)
		}
		p.set(func() { p.stuck = nil })
		close(stuck)
		synctest.Wait()
		if h, hangs := w.Hang(); hangs {
			t.Errorf("the probe has returned: %+v", h)
		}
		last := make(chan struct{})
		p.set(func() { p.stuck = last })
		pass(2 * time.Second)
		w.Close()
		close(last) // for the end of the bubble
	})
}

// TestStoppedProgramDoesNotHang: only two intervals of the time in which the program was stopped count.
func TestStoppedProgramDoesNotHang(t *testing.T) {
	w := &Watcher{bound: bound, waits: "a request"}
	w.addStill(time.Hour)
	if h, hangs := w.Hang(); hangs || h.Lasted == 0 {
		t.Errorf("%+v, %v", h, hangs)
	}
}
