//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"context"
	"runtime"
	"time"
)

// A point is an event of CUDA's that says when what a stream was given so far
// is done. Nobody ever blocks in the driver for one: a stream may be waiting
// for a word that only another stream's work will bring about, and that has to
// take the same lock. So whoever waits asks, and naps in between; asking takes
// about a microsecond. What has to be quick waits for a word instead, which takes
// no call at all.
//
// The first questions come one behind the other, for as long as it takes to fall
// asleep and to be woken twice; naps are then a part of the time that has passed, so
// that nobody oversleeps by more than that.
const (
	spinFor       = 100 * time.Microsecond
	pauseFraction = 8
	minPause      = 20 * time.Microsecond
	maxPause      = time.Millisecond
	maxSpare      = 64 // points kept for the next
)

// record makes a point behind what a stream was given. Like all that is given a
// caller, it is called between begin and end.
func (g *gpu) record(c *caller, s *stream) (uintptr, error) {
	if s.closed.Load() {
		return 0, g.closed(symEventRecord, invalidHandle, "stream")
	}
	return g.recordRaw(c, s.raw)
}

func (g *gpu) recordRaw(c *caller, stream uintptr) (uintptr, error) {
	var point uintptr
	if n := len(g.sparePoints); n > 0 {
		point, g.sparePoints = g.sparePoints[n-1], g.sparePoints[:n-1]
	} else {
		var err error
		if point, err = g.makeEvent(c); err != nil {
			return 0, err
		}
	}
	if err := g.must(c, symEventRecord, point, stream); err != nil {
		g.releasePoint(c, point)
		return 0, err
	}
	return point, nil
}

// query asks whether a point is done.
func (g *gpu) query(c *caller, point uintptr) (bool, error) {
	switch got := c.call(symEventQuery, point); got {
	case success:
		return true, nil
	case notReady:
		return false, nil
	default:
		return false, g.fail(c, symEventQuery, got)
	}
}

// releasePoint keeps a point for the next record, which may come before it is done.
func (g *gpu) releasePoint(c *caller, point uintptr) {
	if len(g.sparePoints) < maxSpare {
		g.sparePoints = append(g.sparePoints, point)
		return
	}
	_ = g.dropEvent(c, point) // nobody waits for it
}

// makeEvent makes an event of CUDA's.
func (g *gpu) makeEvent(c *caller) (uintptr, error) {
	if err := g.must(c, symEventCreate, address(&c.word), eventDisableTiming); err != nil {
		return 0, err
	}
	g.events++
	return uintptr(c.word), nil
}

func (g *gpu) dropEvent(c *caller, event uintptr) error {
	g.events--
	return g.must(c, symEventDestroy, event)
}

// await waits for a point, and gives it back. Not between begin and end.
func (g *gpu) await(ctx context.Context, point uintptr) error {
	var n backoff
	defer n.stop()
	for {
		ready, err := g.pollPoint(point)
		if err != nil || ready {
			return err
		}
		if err := n.wait(ctx); err != nil {
			// If that fails the device is gone, and the point with it.
			if c, failed := g.lockContext(true); failed == nil {
				g.releasePoint(c, point)
				g.unlockContext(c)
			}
			return err
		}
	}
}

// pollPoint reports whether a point is done, which is then given back.
func (g *gpu) pollPoint(point uintptr) (bool, error) {
	c, err := g.lockContext(false)
	if err != nil {
		return false, err
	}
	defer g.unlockContext(c)
	ready, err := g.query(c, point)
	if ready || err != nil {
		g.releasePoint(c, point)
	}
	return ready, err
}

// synchronize waits until all that was submitted up to now is done. Taking memory
// away makes the driver wait for that inside a call, and whoever wants to go on
// meanwhile may have to wait for the driver.
func (g *gpu) synchronize() error {
	var points []uintptr
	err := g.do(func(c *caller) error {
		points, g.closedTails = g.closedTails, nil
		for s := range g.streams {
			point, err := g.recordRaw(c, s.raw)
			if err != nil {
				return err
			}
			points = append(points, point)
		}
		return nil
	})
	for _, point := range points {
		if waited := g.await(context.Background(), point); err == nil {
			err = waited
		}
	}
	return err
}

// backoff paces the questions: at once at first, then less and less often.
type backoff struct {
	since time.Time
	timer *time.Timer
}

func (n *backoff) wait(ctx context.Context) error {
	if n.since.IsZero() {
		n.since = time.Now()
	}
	passed := time.Since(n.since)
	if passed < spinFor {
		runtime.Gosched()
		return ctx.Err()
	}
	next := min(max(passed/pauseFraction, minPause), maxPause)
	if n.timer == nil {
		n.timer = time.NewTimer(next)
	} else {
		n.timer.Reset(next)
	}
	select {
	case <-n.timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *backoff) stop() {
	if n.timer != nil {
		n.timer.Stop()
	}
}
