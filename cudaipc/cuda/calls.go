//go:build cuda && linux && (amd64 || arm64)

package cuda

import "runtime"

// Calls are made on the threads of those who want them, one at a time for each GPU,
// with its context current for just so long: going to a thread that has it, and back,
// takes many times what a call does. Between begin and end the goroutine has the lock,
// and its thread for itself.
//
// What takes memory away may wait in the driver for streams, whatever settle did, and
// a stream may wait for what somebody else is about to submit. What maps memory, or pins
// it, takes as long as that is large. Both are called apart: with the context, and
// without the lock.

// lockContext is the beginning of calls. The error is the sticky one, which does not matter
// to those that take something down (last), or that the GPU is closed.
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

// pushContext makes the context the thread's, on top of what it has: that may be somebody
// else's, who knows nothing of this.
func (g *gpu) pushContext(c *caller) error {
	runtime.LockOSThread()
	if got := c.call(symCtxPushCurrent, g.context); got != success {
		runtime.UnlockOSThread()
		return g.fail(c, symCtxPushCurrent, got)
	}
	// While another thread captures a graph, many calls fail in all threads, and
	// end the capture. What is called here is never meant to be in a graph.
	c.number = captureRelaxed
	c.call(symThreadExchangeCaptureMode, address(&c.number))
	c.mode = c.number
	return nil
}

// popContext leaves the thread as it was.
func popContext(c *caller) {
	c.number = c.mode
	c.call(symThreadExchangeCaptureMode, address(&c.number))
	c.call(symCtxPopCurrent, address(&c.word))
	runtime.UnlockOSThread()
}

// do makes calls.
func (g *gpu) do(run func(*caller) error) error {
	c, err := g.lockContext(false)
	if err != nil {
		return err
	}
	defer g.unlockContext(c)
	return run(c)
}

// doClosing makes calls that take something down. On a device that has failed there is
// nothing left to take down, so what the driver says then is no error.
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

// doUnlocked makes calls that may wait, and look at nothing of the GPU's but its context.
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

// doMapping is apart, for what makes memory known to the GPU or maps it, which can take
// long, and then note with the lock. If the GPU was closed meanwhile, the memory is
// given back by the last function instead.
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

// doFreeing is undo and then apart: first what is known of something goes, and then the
// thing. The errors of a device that has failed are none.
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

// retain gets the primary context. It is the one that CUDA's runtime uses, and so
// PyTorch: memory of one is that of the other.
func (g *gpu) retain() error {
	c := g.caller
	c.word = 0
	if got := c.call(symPrimaryCtxRetain, address(&c.word), uintptr(g.card.number)); got != success {
		return g.fail(c, symPrimaryCtxRetain, got)
	}
	g.context = uintptr(c.word)
	return nil
}

// stop gives the context back, behind all calls that are made. It is called once. What
// fails here fails for nobody.
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
