package bus

import (
	"cmp"
	"fmt"
	"slices"
)

// Detach removes a replica whose process is gone, and moves its tasks to other
// replicas, or fails the requests that cannot be moved. The session has stopped:
// it emits and finishes nothing for the replica any more.
func (rep *Replica) Detach(cause error) {
	r := rep.remote
	r.mu.Lock()
	r.replicas = slices.DeleteFunc(r.replicas, func(other *Replica) bool { return other == rep })
	r.serving = slices.DeleteFunc(r.serving, func(other *Replica) bool { return other == rep })
	replicaTasks := make([]*ReplicaTask, 0, len(rep.tasks))
	for _, p := range rep.tasks {
		replicaTasks = append(replicaTasks, p)
	}
	slices.SortFunc(replicaTasks, func(a, b *ReplicaTask) int { return cmp.Compare(a.rt.task.Request(), b.rt.task.Request()) })
	var failed []*Work
	var after AfterUnlock
	for _, p := range replicaTasks {
		failed = append(failed, r.moveTask(p, cause, &after)...)
	}
	r.mu.Unlock()
	after.Run()
	for _, w := range failed {
		for _, d := range w.parts {
			_ = d.Finish(cause) // only the replica held it, so it is not finished yet
		}
	}
}

// ReleaseOrphan releases a work of an ended request that the departed replica of by
// still held. A work that another replica has got stays there.
func (w *Work) ReleaseOrphan(by ReplicaConn) {
	r := w.rt.task.stage.remote
	r.mu.Lock()
	if w.replica == nil || w.replica.conn != by {
		r.mu.Unlock()
		return
	}
	w.replica = nil
	var after AfterUnlock
	r.removeWork(w, &after)
	r.mu.Unlock()
	after.Run()
	for _, d := range w.parts {
		_ = d.Finish(nil) // only the replica held it
	}
}

// moveTask, with mu held, moves one task away from a replica that is gone. It
// returns the works that cannot be repeated.
func (r *RemoteStage) moveTask(p *ReplicaTask, cause error, after *AfterUnlock) (failed []*Work) {
	rt := p.rt
	delete(p.replica.tasks, rt)
	if rt.stickyReplica == p.replica {
		rt.stickyReplica = nil
	}
	if p.ending {
		rt.answersLeft--
	}
	spec := &r.stage.spec
	cause = fmt.Errorf("%w: %w", ErrProcessDied, cause)
	switch {
	case rt.ended: // the worker is being told
	case spec.State == StateNone:
		failed = r.repeatWorks(rt, p.replica, after)
	case !rt.delivered:
	case spec.Replay && rt.attempt < spec.Attempts:
		r.replayTask(rt, after)
	default:
		failed = r.worksAt(rt, p.replica)
		if len(failed) == 0 { // the replica had no work, but its state is lost
			rt.task.failAfterUnlock(cause, after)
		}
	}
	for _, w := range failed {
		rt.task.failAtAfterUnlock(w.parts[0], cause, after)
		w.replica = nil
		r.removeWork(w, after)
	}
	if p.ending && rt.answersLeft == 0 {
		rt.answersLeft, rt.output.seen = -1, rt.endEmissions // the other replicas have answered, or there is none: ask again
	}
	r.checkEnd(rt, after)
	return failed
}

// worksAt, with mu held, returns the works of a task that a replica has.
func (r *RemoteStage) worksAt(rt *remoteTask, rep *Replica) []*Work {
	var at []*Work
	for _, w := range rt.works {
		if w.replica == rep {
			at = append(at, w)
		}
	}
	return at
}

// repeatWorks, with mu held, routes the works that this replica did not finish
// to another one. It returns the works that have had all their attempts.
func (r *RemoteStage) repeatWorks(rt *remoteTask, rep *Replica, after *AfterUnlock) (exhausted []*Work) {
	for _, w := range r.worksAt(rt, rep) {
		if w.tries >= r.stage.spec.Attempts {
			exhausted = append(exhausted, w)
			continue
		}
		w.repeat()
		r.route(w, after)
	}
	return exhausted
}

// repeat prepares a work to be handled again.
func (w *Work) repeat() {
	w.tries++
	w.replica, w.err, w.output.seen = nil, nil, 0
	for _, d := range w.parts {
		d.Attempt++
	}
}

// replayTask, with mu held, runs a request again at this stage, from its first input.
func (r *RemoteStage) replayTask(rt *remoteTask, after *AfterUnlock) {
	rt.attempt++
	rt.output.seen, rt.answersLeft, rt.delivered, rt.answeredEarly = 0, -1, false, false
	again := slices.Concat(rt.retained, rt.works)
	for _, w := range rt.retained {
		for _, d := range w.parts {
			d.state.Store(stateHeld)
			rt.task.hold(d)
		}
	}
	r.waiting = slices.DeleteFunc(r.waiting, func(w *Work) bool { return w.rt == rt })
	rt.retained, rt.works = nil, again
	for _, w := range slices.Clone(again) { // route may remove one
		w.repeat()
		r.route(w, after)
	}
}
