package bus

import "slices"

// end has the replicas emit what is left of the request, when they have finished its inputs. It
// reports whether they have: if not, the worker is told to look when they have.
func (r *Station) end(t *Task) (ended bool, err error) {
	var fu FollowUp
	defer fu.Do()
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := r.taskOf(t)
	if !rt.ending {
		rt.ending = true
		r.tryEnd(rt, &fu)
	}
	return rt.ended, rt.endErr
}

// progress, with mu held, is called when something has changed that may let a task end.
func (r *Station) progress(rt *remoteTask, fu *FollowUp) {
	if r.tryEnd(rt, fu) {
		rt.task.answered.Store(true)
		rt.task.nudge()
	}
}

// tryEnd, with mu held, asks the replicas to end a task whose work is done. It reports
// whether the task has ended.
func (r *Station) tryEnd(rt *remoteTask, fu *FollowUp) (ended bool) {
	if !rt.ending || rt.ended || rt.endsLeft >= 0 || len(rt.works) > 0 {
		return false
	}
	posts := r.postingsOf(rt)
	if len(posts) == 0 && rt.early || r.silent(rt, posts) {
		rt.ended = true
		return true
	}
	if len(posts) == 0 {
		rep := r.choose()
		if rep == nil {
			if r.lost != nil {
				rt.task.failBehind(r.lost, fu)
			}
			return false // attach comes back to it
		}
		posts = append(posts, rep.post(rt))
		rt.home = rep
	}
	rt.endsLeft, rt.endFrom = len(posts), rt.output.seen
	for _, p := range posts {
		p.ending = true
		if !p.unasked() {
			p.agent.EndTask()
		}
	}
	return false
}

// silent, with mu held, reports whether a task whose work is done needs no answer: the replicas that
// know it do nothing at the end and emit no more, and nothing of it went past this process.
func (r *Station) silent(rt *remoteTask, posts []*Posting) bool {
	past := func(e *edge) bool { return rt.task.outlet.req.flow(e).direct.Load() != nil }
	acts := func(p *Posting) bool { return !p.replica.ends || !p.handled }
	return len(posts) > 0 && !slices.ContainsFunc(posts, acts) &&
		!slices.ContainsFunc(r.stage.in, past) && !slices.ContainsFunc(r.stage.out, past)
}

// passive reports whether the replicas do nothing at the end of a task. Of a stage without
// replicas it is not known.
func (r *Station) passive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.serving) > 0 && !slices.ContainsFunc(r.serving, func(rep *Replica) bool { return !rep.ends })
}

// postingsOf, with mu held, gives the replicas that know the task, those that
// take no new work among them.
func (r *Station) postingsOf(rt *remoteTask) []*Posting {
	var posts []*Posting
	for _, rep := range r.serving {
		if p := rep.postings[rt]; p != nil {
			posts = append(posts, p)
		}
	}
	return posts
}

// Asked reports whether a replica may say that a task has ended.
func (p *Posting) Asked() bool {
	r := p.replica.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.ending || p.unasked()
}

// Answered is called, without locks, when a replica has ended its part of a task. An end that
// comes before all that the replica was given is finished has no effect: that is how much it
// returns.
func (p *Posting) Answered(err error) (unfinished int) {
	rt, r := p.rt, p.replica.remote
	r.mu.Lock()
	known, waited := p.replica.postings[rt] == p, p.ending
	ended := false
	switch {
	case !known: // it was told that the request is over
	case waited:
		delete(p.replica.postings, rt)
		ended = r.ended(rt, err)
	case err == nil:
		if unfinished = len(r.worksAt(rt, p.replica)); unfinished == 0 {
			delete(p.replica.postings, rt)
			rt.early = true
		}
	}
	r.mu.Unlock()
	switch {
	case ended:
		rt.task.answered.Store(true)
		rt.task.look()
	case known && !waited && err != nil:
		rt.task.failWhere(err)
	}
	return unfinished
}

// ended, with mu held, counts one answer to end, and reports whether it was the last.
func (r *Station) ended(rt *remoteTask, err error) bool {
	if rt.endErr == nil {
		rt.endErr = err
	}
	rt.endsLeft--
	rt.ended = rt.endsLeft == 0
	return rt.ended
}

// over forgets a task whose request is over, or whose part here is.
func (r *Station) over(t *Task) {
	var fu FollowUp
	r.mu.Lock()
	rt := r.taskOf(t)
	rt.ending = false // no replica is asked any more
	delete(r.tasks, rt)
	for _, p := range r.postingsOf(rt) {
		delete(p.replica.postings, rt)
		p.agent.TaskOver(rt.ended && p.unasked())
	}
	idle := rt.lasts // no replica has them, so they are finished here
	rt.lasts = nil
	for _, w := range idle {
		r.done(w, &fu)
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w *Work) bool {
		if w.rt == rt {
			idle = append(idle, w)
			r.done(w, &fu)
		}
		return w.rt == rt
	})
	for _, w := range slices.Clone(rt.works) {
		if w.replica != nil && w.adrift { // whose detach does not find the task any more
			idle = append(idle, w)
			w.replica = nil
			r.done(w, &fu)
		}
	}
	retained := rt.retained
	rt.retained = nil
	r.mu.Unlock()
	fu.Do()
	for _, w := range idle {
		for _, d := range w.parts {
			_ = d.Finish(nil) // held here alone
		}
	}
	for _, w := range retained {
		for _, d := range w.parts {
			d.flow.retained.Add(-d.cost)
			d.giveBack()
		}
	}
}
