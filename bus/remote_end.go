package bus

import "slices"

// endTask has the replicas end the task when they have finished its inputs. It reports whether the task
// has ended; if not, the worker is woken when it has.
func (r *RemoteStage) endTask(t *Task) (ended bool, err error) {
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

// checkEnd, with mu held, is called after a change that may let a task end. It wakes the worker of an ended task.
func (r *RemoteStage) checkEnd(rt *remoteTask, after *AfterUnlock) {
	if r.tryEnd(rt, after) {
		rt.task.answered.Store(true)
		rt.task.wake()
	}
}

// tryEnd, with mu held, asks the replicas to end a task whose work is done. It reports
// whether the task has ended.
func (r *RemoteStage) tryEnd(rt *remoteTask, after *AfterUnlock) (ended bool) {
	if !rt.ending || rt.ended || rt.failed || rt.answersLeft >= 0 || len(rt.works) > 0 {
		return false
	}
	replicaTasks := r.replicaTasks(rt)
	if len(replicaTasks) == 0 && rt.answeredEarly || r.needsNoAnswer(rt, replicaTasks) {
		rt.ended = true
		return true
	}
	if len(replicaTasks) == 0 {
		rep := r.choose()
		if rep == nil {
			if r.lostErr != nil {
				rt.task.failAfterUnlock(r.lostErr, after)
			}
			return false // Begin of the next replica tries again
		}
		replicaTasks = append(replicaTasks, rep.openTask(rt))
		rt.stickyReplica = rep
	}
	rt.answersLeft, rt.endEmissions = len(replicaTasks), rt.output.seen
	for _, p := range replicaTasks {
		p.ending = true
		if !p.endsUnasked() {
			p.conn.EndTask()
		}
	}
	return false
}

// needsNoAnswer, with mu held, reports whether a task whose work is done ends without answers: the replicas
// that know it do nothing at the end and emit nothing more, and none of its streams has a direct path.
func (r *RemoteStage) needsNoAnswer(rt *remoteTask, replicaTasks []*ReplicaTask) bool {
	past := func(e *edge) bool { return rt.task.outputs.req.flow(e).direct.Load() != nil }
	acts := func(p *ReplicaTask) bool { return !p.replica.endsUnasked || !p.handled }
	return len(replicaTasks) > 0 && !slices.ContainsFunc(replicaTasks, acts) &&
		!slices.ContainsFunc(r.stage.in, past) && !slices.ContainsFunc(r.stage.out, past)
}

// passive reports whether the replicas are known to do nothing at the end of a task: a stage without
// replicas is not passive.
func (r *RemoteStage) passive() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.serving) > 0 && !slices.ContainsFunc(r.serving, func(rep *Replica) bool { return !rep.endsUnasked })
}

// replicaTasks, with mu held, returns the task at each replica that knows it,
// also at replicas that take no new work.
func (r *RemoteStage) replicaTasks(rt *remoteTask) []*ReplicaTask {
	var replicaTasks []*ReplicaTask
	for _, rep := range r.serving {
		if p := rep.tasks[rt]; p != nil {
			replicaTasks = append(replicaTasks, p)
		}
	}
	return replicaTasks
}

// MayEnd reports whether the replica may say that the task has ended.
func (p *ReplicaTask) MayEnd() bool {
	r := p.replica.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.ending || p.endsUnasked()
}

// TaskEnded is called, without locks, when a replica has ended its part of a task. Where the replica
// has works that are not finished, the end has no effect, and TaskEnded returns their number.
func (p *ReplicaTask) TaskEnded(err error) (unfinished int) {
	rt, r := p.rt, p.replica.remote
	r.mu.Lock()
	known, waited := p.replica.tasks[rt] == p, p.ending
	ended := false
	switch {
	case !known: // the replica was told that the request is over
	case waited:
		delete(p.replica.tasks, rt)
		ended = r.countAnswer(rt, err)
	case err == nil:
		if unfinished = len(r.worksAt(rt, p.replica)); unfinished == 0 {
			delete(p.replica.tasks, rt)
			rt.answeredEarly = true
		}
	}
	r.mu.Unlock()
	switch {
	case ended:
		rt.task.answered.Store(true)
		rt.task.wakeAndRun()
	case known && !waited && err != nil:
		rt.task.failLocated(err)
	}
	return unfinished
}

// countAnswer, with mu held, counts the answer of one replica to the end, and reports whether it was the last.
func (r *RemoteStage) countAnswer(rt *remoteTask, err error) bool {
	if rt.endErr == nil {
		rt.endErr = err
	}
	rt.answersLeft--
	rt.ended = rt.answersLeft == 0
	return rt.ended
}

// closeTask removes a task whose request is over, or which has ended at this stage.
func (r *RemoteStage) closeTask(t *Task) {
	var after AfterUnlock
	r.mu.Lock()
	rt := r.taskOf(t)
	rt.ending = false // no further replica is asked
	delete(r.tasks, rt)
	for _, p := range r.replicaTasks(rt) {
		delete(p.replica.tasks, rt)
		p.conn.TaskOver(rt.ended && p.endsUnasked())
	}
	idle := rt.lastWorks // no replica has them, so closeTask finishes them
	rt.lastWorks = nil
	for _, w := range idle {
		r.removeWork(w, &after)
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w *Work) bool {
		if w.rt == rt {
			idle = append(idle, w)
			r.removeWork(w, &after)
		}
		return w.rt == rt
	})
	for _, w := range slices.Clone(rt.works) {
		if w.replica != nil && w.undelivered { // Detach of its replica does not find the task any more
			idle = append(idle, w)
			w.replica = nil
			r.removeWork(w, &after)
		}
	}
	retained := rt.retained
	rt.retained = nil
	r.mu.Unlock()
	after.Run()
	for _, w := range idle {
		for _, d := range w.parts {
			_ = d.Finish(nil) // only the stage holds it
		}
	}
	for _, w := range retained {
		for _, d := range w.parts {
			d.release()
		}
	}
}
