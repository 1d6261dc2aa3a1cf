package drivertest

func testFreshEvent(r *rig) {
	e, s := r.event(), r.stream()
	if done, err := e.Done(); !done || err != nil {
		r.Errorf("an event without a record is done: %t, %v", done, err)
	}
	r.submit(s, awaitOp(e))
	r.synchronize(s)
}

// testEventHoldsBack: operations after an await see the results of operations before the record.
func testEventHoldsBack(r *rig) {
	const n = mib
	words := r.words(2)
	gate, out := words[0], words[1]
	mem, h := r.host(n)
	a, b := r.alloc(n), r.alloc(n)
	s, u, e := r.stream(), r.stream(), r.event()
	r.fill(a, 1, n)
	r.fill(b, 2, n)
	r.submit(s, waitOp(gate, 1), copyOp(b, a, n), recordOp(e))
	r.submit(u, awaitOp(e), writeOp(out, 1), copyOp(h.Ptr(0), b, n))
	r.wantBlocked(u)
	if done, err := e.Done(); done || err != nil || out.Host.Load() != 0 {
		r.Errorf("before its time: event %t (%v), word behind it %d", done, err, out.Host.Load())
	}
	gate.Host.Store(1)
	r.synchronize(u)
	if err := same(mem, pattern(1, n)); err != nil {
		r.Errorf("behind the event: %v", err)
	}
	if done, err := e.Done(); !done || err != nil {
		r.Errorf("the event that was awaited is done: %t, %v", done, err)
	}
}

// testEventAsItIs: an await waits for the event's point at the time of its Submit, also if the
// event is recorded again.
func testEventAsItIs(r *rig) {
	words := r.words(2)
	first, second := words[0], words[1]
	s, u, v, e := r.stream(), r.stream(), r.stream(), r.event()
	r.submit(v, awaitOp(e))
	r.submit(s, waitOp(first, 1), recordOp(e))
	r.synchronize(v)

	r.submit(u, awaitOp(e))
	r.submit(s, waitOp(second, 1), recordOp(e))
	first.Host.Store(1)
	r.synchronize(u)
	r.wantBlocked(s)
	if done, err := e.Done(); done || err != nil {
		r.Errorf("the second point is done before its time (%v)", err)
	}
	// Another stream reaches its point sooner.
	r.submit(u, awaitOp(e))
	r.submit(v, recordOp(e))
	r.synchronize(v)
	r.wantBlocked(u)
	second.Host.Store(1)
	r.synchronize(s)
	r.synchronize(u)
	if done, err := e.Done(); !done || err != nil {
		r.Errorf("the last point is done: %t, %v", done, err)
	}
}

// testEventOfClosedStream: submitted operations are done after the stream was closed.
func testEventOfClosedStream(r *rig) {
	words := r.words(2)
	gate, out := words[0], words[1]
	s, err := r.dev.NewStream()
	if err != nil {
		r.Fatal(err)
	}
	u, e := r.stream(), r.event()
	r.submit(s, waitOp(gate, 1), writeOp(out, 1), recordOp(e))
	r.submit(u, awaitOp(e))
	if err := s.Close(); err != nil {
		r.Errorf("close a stream that waits: %v", err)
	}
	gate.Host.Store(1)
	r.synchronize(u)
	if done, err := e.Done(); !done || err != nil || out.Host.Load() != 1 {
		r.Errorf("after the stream was closed: event %t (%v), word %d", done, err, out.Host.Load())
	}
}
