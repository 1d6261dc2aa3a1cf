package bus

import "slices"

// end has the replicas emit what is left of the request, when they have finished its inputs. It
// reports whether they have: if not, the worker is told to look when they have.
func (r *RemoteStage) end(t *Task) (ended bool, err error) {
	var after AfterUnlock
	defer after.Run()
	r.mu.Lock()
	defer r.mu.Unlock()
	rt := r.taskOf(t)
	if !rt.ending {
		rt.ending = true
		r.tryEnd(rt, &after)
	}
	return rt.ended, rt.endErr
}

// progress, with mu held, is called when something has changed that may let a task end.
func (r *RemoteStage) progress(rt *remoteTask, after *AfterUnlock) {
	if r.tryEnd(rt, after) {
		rt.task.answered.Store(true)
		rt.task.wake()
	}
}

// tryEnd, with mu held, asks the replicas to end a task whose work is done. It reports
// whether the task has ended.
func (r *RemoteStage) tryEnd(rt *remoteTask, after *AfterUnlock) (ended bool) {
	if !rt.ending || rt.ended || rt.endsLeft >= 0 || len(rt.works) > 0 {
		return false
	}
	posts := r.replicaTasks(rt)
	if len(posts) == 0 && rt.early || r.silent(rt, posts) {
		rt.ended = true
		return true
	}
	if len(posts) == 0 {
		rep := r.choose()
		if rep == nil {
			if r.lost != nil {
				rt.task.failBehind(r.lost, after)
			}
			return false // attach comes back to it
		}
		posts = append(posts, rep.post(rt))
		rt.home = rep
	}
	rt.endsLeft, rt.endFrom = len(posts), rt.output.seen
	for _, p := range posts {
		p.ending = true
		if !p.endsUnasked() {
			p.conn.EndTask()
		}
	}
	return false
}

// silent, with mu held, reports whether a task whose work is done needs no answer: the replicas that
// know it do nothing at the end and emit no more, and nothing of it went past this process.
func (r *RemoteStage) silent(rt *remoteTask, posts []*ReplicaTask) bool {
	past := func(e *edge) bool { return rt.task.outlet.req.flow(e).direct.Load() != nil }
	acts := func(p *ReplicaTask) bool { return !p.replica.ends || !p.handled }
	return len(posts) > 0 && !slices.ContainsFunc(posts, acts) &&
		!slices.ContainsFunc(r.stage.in, past) && !slices.ContainsFunc(r.stage.out, past)
}

// passive reports whether the replicas do nothing at the end of a task. Of a stage without
// replicas it is not known.
func (r *RemoteStage) passive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.serving) > 0 && !slices.ContainsFunc(r.serving, func(rep *Replica) bool { return !rep.ends })
}

// replicaTasks, with mu held, gives the replicas that know the task, those that
// take no new work among them.
func (r *RemoteStage) replicaTasks(rt *remoteTask) []*ReplicaTask {
	var posts []*ReplicaTask
	for _, rep := range r.serving {
		if p := rep.tasks[rt]; p != nil {
			posts = append(posts, p)
		}
	}
	return posts
}

// Asked reports whether a replica may say that a task has ended.
func (p *ReplicaTask) Asked() bool {
	r := p.replica.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.ending || p.endsUnasked()
}

// Answered is called, without locks, when a replica has ended its part of a task. An end that
// comes before all that the replica was given is finished has no effect: that is how much it
// returns.
func (p *ReplicaTask) Answered(err error) (unfinished int) {
	rt, r := p.rt, p.replica.remote
	r.mu.Lock()
	known, waited := p.replica.tasks[rt] == p, p.ending
	ended := false
	switch {
	case !known: // it was told that the request is over
	case waited:
		delete(p.replica.tasks, rt)
		ended = r.ended(rt, err)
	case err == nil:
		if unfinished = len(r.worksAt(rt, p.replica)); unfinished == 0 {
			delete(p.replica.tasks, rt)
			rt.early = true
		}
	}
	r.mu.Unlock()
	switch {
	case ended:
		rt.task.answered.Store(true)
		rt.task.poll()
	case known && !waited && err != nil:
		rt.task.failWhere(err)
	}
	return unfinished
}

// ended, with mu held, counts one answer to end, and reports whether it was the last.
func (r *RemoteStage) ended(rt *remoteTask, err error) bool {
	if rt.endErr == nil {
		rt.endErr = err
	}
	rt.endsLeft--
	rt.ended = rt.endsLeft == 0
	return rt.ended
}

// over forgets a task whose request is over, or whose part here is.
func (r *RemoteStage) over(t *Task) {
	var after AfterUnlock
	r.mu.Lock()
	rt := r.taskOf(t)
	rt.ending = false // no replica is asked any more
	delete(r.tasks, rt)
	for _, p := range r.replicaTasks(rt) {
		delete(p.replica.tasks, rt)
		p.conn.TaskOver(rt.ended && p.endsUnasked())
	}
	idle := rt.lasts // no replica has them, so they are finished here
	rt.lasts = nil
	for _, w := range idle {
		r.done(w, &after)
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w *Work) bool {
		if w.rt == rt {
			idle = append(idle, w)
			r.done(w, &after)
		}
		return w.rt == rt
	})
	for _, w := range slices.Clone(rt.works) {
		if w.replica != nil && w.adrift { // whose detach does not find the task any more
			idle = append(idle, w)
			w.replica = nil
			r.done(w, &after)
		}
	}
	retained := rt.retained
	rt.retained = nil
	r.mu.Unlock()
	after.Run()
	for _, w := range idle {
		for _, d := range w.parts {
			_ = d.Finish(nil) // held here alone
		}
	}
	for _, w := range retained {
		for _, d := range w.parts {
			d.giveBack()
		}
	}
}
