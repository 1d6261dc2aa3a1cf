//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"runtime"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// task says what a job does. What happens for each message has a task of its
// own, so that it needs no closure.
type task uint8

const (
	runTask    task = iota
	submitTask      // queue operations
	recordTask      // make a point behind what is queued
	queryTask       // ask whether a point is done, and give it back if it is
	dropTask        // give a point back, done or not
)

// job is work for the executor.
type job struct {
	task task
	last bool // it takes something down: done even if the device has failed
	run  func(*caller) error

	stream *stream
	ops    []cudaipc.Op
	point  uintptr

	queued int  // of ops
	ready  bool // the point
	err    error
	done   chan struct{}
}

var jobs = sync.Pool{New: func() any { return &job{done: make(chan struct{}, 1)} }}

func newJob(t task) *job {
	j := jobs.Get().(*job)
	j.task = t
	return j
}

// release ends the use of a job, which nobody else has any more.
func (j *job) release() {
	*j = job{done: j.done}
	jobs.Put(j)
}

// post has the executor do a job, and waits until it is done. Jobs that the
// executor has taken are always done: the channel keeps none.
func (g *gpu) post(j *job) error {
	if !j.last {
		if err := g.failed(); err != nil {
			return err
		}
	}
	select {
	case g.jobs <- j:
		<-j.done
		return j.err
	case <-g.gone:
		return g.closed(symCtxSetCurrent, contextGone, "GPU")
	}
}

// do runs a function on the executor's thread.
func (g *gpu) do(run func(*caller) error) error { return g.exec(run, false) }

// undo runs a function that takes something down. On a device that has failed
// there is nothing left to take down, so what the driver says then is no error.
func (g *gpu) undo(run func(*caller) error) error {
	err := g.exec(run, true)
	if g.failed() == nil {
		return err
	}
	return nil
}

func (g *gpu) exec(run func(*caller) error, last bool) error {
	j := newJob(runTask)
	defer j.release()
	j.run, j.last = run, last
	return g.post(j)
}

// loop is the executor: the one thread that has the context. It ends when the
// device is closed.
func (g *gpu) loop(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(g.gone)
	c, err := newCaller(&g.lib.addresses)
	if err != nil {
		started <- err
		return
	}
	defer c.free()
	if err := g.enter(c); err != nil {
		started <- err
		return
	}
	started <- nil
	for {
		select {
		case j := <-g.jobs:
			g.perform(c, j)
			j.done <- struct{}{}
		case <-g.quit:
			g.leave(c)
			return
		}
	}
}

// enter makes the primary context the thread's own. It is the context that
// CUDA's runtime uses, and so PyTorch: memory of one is that of the other.
func (g *gpu) enter(c *caller) error {
	c.word = 0
	if got := c.call(symPrimaryCtxRetain, address(&c.word), uintptr(g.card.number)); got != success {
		return g.fail(c, symPrimaryCtxRetain, got)
	}
	if got := c.call(symCtxSetCurrent, uintptr(c.word)); got != success {
		err := g.fail(c, symCtxSetCurrent, got)
		c.call(symPrimaryCtxRelease, uintptr(g.card.number))
		return err
	}
	// While another thread captures a graph, many calls fail in all threads, and
	// end the capture. What this thread does is never meant to be in a graph.
	c.number = captureRelaxed
	c.call(symThreadExchangeCaptureMode, address(&c.number))
	return nil
}

// leave gives the context back. What fails here fails for nobody.
func (g *gpu) leave(c *caller) {
	for _, point := range append(g.spare, g.tails...) {
		_ = g.dropEvent(c, point)
	}
	c.call(symCtxSetCurrent, 0)
	c.call(symPrimaryCtxRelease, uintptr(g.card.number))
}

func (g *gpu) perform(c *caller, j *job) {
	switch j.task {
	case runTask:
		j.err = j.run(c)
	case submitTask:
		j.queued, j.point, j.err = g.submit(c, j.stream, j.ops)
	case recordTask:
		j.point, j.err = g.record(c, j.stream)
	case queryTask:
		j.ready, j.err = g.query(c, j.point)
		if j.ready || j.err != nil {
			g.putBack(c, j.point)
		}
	case dropTask:
		g.putBack(c, j.point)
	}
}
