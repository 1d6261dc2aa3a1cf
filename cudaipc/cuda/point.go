//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"context"
	"runtime"
	"time"
)

// A point is an event of CUDA that is done when the earlier operations of a stream are done. No
// call blocks in the driver for one: the stream may wait for a word that another stream writes,
// whose Submit needs the same lock. So a waiting call queries the event, with pauses; a query takes
// about a microsecond. Code that has to be fast waits for a word instead, without calls.
//
// The first queries follow each other without a pause, for as long as falling asleep and waking
// twice takes; later pauses are a fraction of the elapsed time, so that a wait is at most that much
// too long.
const (
	spinFor       = 100 * time.Microsecond
	pauseFraction = 8
	minPause      = 20 * time.Microsecond
	maxPause      = time.Millisecond
	maxSpare      = 64 // free points that are kept
)

// record makes a point after the present operations of a stream. Like all functions with a caller,
// it runs between lockContext and unlockContext.
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

// query reports whether a point is done.
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

// releasePoint keeps a point for the next record, which may come before the point is done.
func (g *gpu) releasePoint(c *caller, point uintptr) {
	if len(g.sparePoints) < maxSpare {
		g.sparePoints = append(g.sparePoints, point)
		return
	}
	_ = g.dropEvent(c, point) // no call waits for it
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

// await waits for a point, and releases it. It is called without the lock.
func (g *gpu) await(ctx context.Context, point uintptr) error {
	var n backoff
	defer n.stop()
	for {
		ready, err := g.pollPoint(point)
		if err != nil || ready {
			return err
		}
		if err := n.wait(ctx); err != nil {
			// If lockContext fails, the device has failed, and the point with it.
			if c, failed := g.lockContext(true); failed == nil {
				g.releasePoint(c, point)
				g.unlockContext(c)
			}
			return err
		}
	}
}

// pollPoint reports whether a point is done, and releases it then.
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

// synchronize waits until all operations that were submitted before are done. The driver waits for
// them inside the calls that free memory, and other calls would have to wait for the driver.
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

// backoff paces queries: without pauses at first, then with growing ones.
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
