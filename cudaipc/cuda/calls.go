//go:build cuda && linux && (amd64 || arm64)

package cuda

import "runtime"

// Calls run on the threads of their callers, one at a time for each GPU, with the GPU's context
// current for the duration of the calls: switching to a thread with the context, and back, takes
// many times as long as a call. Between lockContext and unlockContext the goroutine holds the lock
// and is bound to its thread.
//
// A call that frees memory may wait in the driver for streams, even after synchronize, and a stream
// may wait for operations that another goroutine is about to submit. A call that maps or pins
// memory takes time proportional to its size. Both kinds run with the context, but without the
// lock.

// lockContext takes the lock and makes the context current. The error is the sticky one, which is
// ignored if last is set, for calls that release something, or that of a closed GPU.
func (g *gpu) lockContext(last bool) (*caller, error) {
	if !last {
		if err := g.failed(); err != nil {
			return nil, err
		}
	}
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return nil, g.closed(symCtxPushCurrent, contextGone, "GPU")
	}
	if err := g.pushContext(g.caller); err != nil {
		g.mu.Unlock()
		return nil, err
	}
	return g.caller, nil
}

func (g *gpu) unlockContext(c *caller) {
	popContext(c)
	g.mu.Unlock()
}

// pushContext makes the context current, on top of the thread's present one, which may belong to
// other code.
func (g *gpu) pushContext(c *caller) error {
	runtime.LockOSThread()
	if got := c.call(symCtxPushCurrent, g.context); got != success {
		runtime.UnlockOSThread()
		return g.fail(c, symCtxPushCurrent, got)
	}
	// While another thread captures a graph, many calls fail in all threads, and end the capture.
	// Calls of this package never belong to a graph.
	c.number = captureRelaxed
	c.call(symThreadExchangeCaptureMode, address(&c.number))
	c.mode = c.number
	return nil
}

// popContext restores the state of the thread.
func popContext(c *caller) {
	c.number = c.mode
	c.call(symThreadExchangeCaptureMode, address(&c.number))
	c.call(symCtxPopCurrent, address(&c.word))
	runtime.UnlockOSThread()
}

// do runs calls with the lock and the context.
func (g *gpu) do(run func(*caller) error) error {
	c, err := g.lockContext(false)
	if err != nil {
		return err
	}
	defer g.unlockContext(c)
	return run(c)
}

// doClosing runs calls that release something. On a failed device there is nothing to release, so
// errors of the driver are dropped.
func (g *gpu) doClosing(run func(*caller) error) error {
	c, err := g.lockContext(true)
	if err == nil {
		err = run(c)
		g.unlockContext(c)
	}
	if g.failed() == nil {
		return err
	}
	return nil
}

// doUnlocked runs calls that may wait, and that use only the context of the GPU.
func (g *gpu) doUnlocked(run func(*caller) error) error {
	g.mu.Lock()
	if g.stopped {
		g.mu.Unlock()
		return g.closed(symCtxPushCurrent, contextGone, "GPU")
	}
	g.unlocked.Add(1)
	g.mu.Unlock()
	defer g.unlocked.Done()
	c, err := newCaller(&g.lib.addresses)
	if err != nil {
		return err
	}
	defer c.free()
	if err := g.pushContext(c); err != nil {
		return err
	}
	defer popContext(c)
	return run(c)
}

// doMapping runs bring, which registers or maps memory and may take long, without the lock, and
// then note with the lock. If the GPU was closed meanwhile, it calls giveBack to release the
// memory.
func (g *gpu) doMapping(bring func(*caller) error, note func(), giveBack func(*caller)) error {
	if err := g.failed(); err != nil {
		return err
	}
	return g.doUnlocked(func(c *caller) error {
		if err := bring(c); err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.stopped {
			giveBack(c)
			return g.closed(symCtxPushCurrent, contextGone, "GPU")
		}
		note()
		return nil
	})
}

// doFreeing runs forget like doClosing, and then free like doUnlocked: first the records are
// removed, then the object. Errors of a failed device are dropped.
func (g *gpu) doFreeing(forget, free func(*caller) error) error {
	err := g.doClosing(forget)
	if err == nil {
		err = g.doUnlocked(free)
	}
	if g.failed() == nil {
		return err
	}
	return nil
}

// retain gets the primary context. CUDA's runtime uses the same context, and so PyTorch: memory of
// one is usable by the other.
func (g *gpu) retain() error {
	c := g.caller
	c.word = 0
	if got := c.call(symPrimaryCtxRetain, address(&c.word), uintptr(g.card.number)); got != success {
		return g.fail(c, symPrimaryCtxRetain, got)
	}
	g.context = uintptr(c.word)
	return nil
}

// stop releases the context, after all running calls. It is called once. Errors here have no caller
// to handle them.
func (g *gpu) stop() {
	c := g.caller
	g.mu.Lock()
	g.stopped = true
	if g.pushContext(c) == nil {
		for _, point := range append(g.sparePoints, g.closedTails...) {
			_ = g.dropEvent(c, point)
		}
		popContext(c)
	}
	g.mu.Unlock()
	g.unlocked.Wait()
	c.call(symPrimaryCtxRelease, uintptr(g.card.number))
	c.free()
}
