package bus

// Progress says whether the requests of a bus progress, and for what the others wait.
type Progress struct {
	// Moved changes when a request begins or ends, and when a delivery is sent.
	Moved uint64
	// Working is set while a handler, a replica or a connector works for a request, or a
	// remote stage with work has no replica.
	Working bool
	// AtCaller is set while a request waits for its caller.
	AtCaller bool
	// Stored is set while the exchange has values: they take memory that requests share.
	Stored  bool
	Blocked int // requests that wait for a slot or for space
	Waiting int // requests that wait for this process
}

// Progress takes a snapshot. It takes the locks of a status, and calls the store's writer.
func (b Backend) Progress() Progress {
	s := b.Stats()
	p := Progress{
		Moved:  b.lastID.Load() + uint64(s.Completed+s.Failed+s.Aborted+s.Deadline), //nolint:gosec // counters
		Stored: s.Exchange.Entries > 0,
	}
	for _, e := range s.Edges {
		p.Moved += uint64(e.Deliveries) //nolint:gosec // a counter
	}
	for _, st := range b.graph.stages {
		p.Working = p.Working || st.remote != nil && st.remote.working()
	}
	for _, r := range b.requests() {
		r.addTo(&p)
	}
	return p
}

// working reports whether a replica has a delivery or has to answer the end of a task, or work waits
// for a replica to attach.
func (r *RemoteStage) working() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rep := range r.serving {
		if rep.load > 0 {
			return true
		}
	}
	for rt := range r.tasks {
		if rt.answersLeft > 0 || len(r.replicas) == 0 {
			return true
		}
	}
	return false
}

// addTo counts the request by its next step.
func (r *Request) addTo(p *Progress) {
	moving, blocked, unread, carried := r.inFlight()
	switch {
	case r.over() || r.inHand.Load() > 0:
		p.AtCaller = true
	case blocked:
		p.Blocked++
	case !moving && !r.inputs.allEnded():
		p.AtCaller = true
	case carried || r.handledHere():
		p.Working = true
	case unread:
		p.AtCaller = true
	default:
		p.Waiting++
	}
}

// inFlight reports whether the request has deliveries in flight or waiting, whether it waits for a slot
// or for space, whether results wait for a caller in this process, and whether deliveries are in a
// connector.
func (r *Request) inFlight() (moving, blocked, unread, carried bool) {
	for i := range r.flows {
		f := &r.flows[i]
		deliveries, _ := f.inFlight()
		waits := f.waitingSince() != 0
		moving = moving || deliveries > 0 || waits
		unread = unread || deliveries > 0 && f.consumer == nil && r.sink == nil
		carried = carried || deliveries > 0 && f.edge.path != nil
	}
	for _, o := range r.allOutputs() {
		blocked = blocked || o.spaceWaiters() > 0 || o.task != nil && o.task.stay.Load() == stayWaiting
	}
	return moving, blocked, unread, carried
}

// allEnded reports whether all streams have ended.
func (o *outputs) allEnded() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.edges {
		if !o.req.flow(e).ended {
			return false
		}
	}
	return true
}

// handledHere reports whether the request is at a stage whose handler runs in this process.
func (r *Request) handledHere() bool {
	for i := range r.tasks {
		if t := &r.tasks[i]; t.stage.remote == nil && t.slot.Load() != nil {
			return true
		}
	}
	return false
}
