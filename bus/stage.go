package bus

import (
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/scoreboard"
	"github.com/omnibus-runtime/omnibus/messages"
)

// stage is one node of the graph, with its slots.
type stage struct {
	spec         StageSpec
	index        int // in topological order
	in, out      []*edge
	inPorts      []Port
	outPorts     []Port
	remote       *RemoteStage       // nil: the work is done here
	runs         *scoreboard.Writer // of a stage with one replica, where the host reads it; or nil
	handlerLocks []handlerLock      // by replica

	// Guarded by admission.mu.
	workers       []*worker
	made          int     // slots
	free          []*slot // of those that the stage began with
	spare         []*slot // of those that were made above the bound
	holders       []*Task // that have a slot
	waits         []*Task // the request that was submitted first comes first
	admittedAbove int64   // slots that were granted above the bound, so far
	stuck         bool    // for admission.circle

	// oneEach has a batch's handler get one delivery of each request at a time:
	// the host then knows what each emission was made for.
	oneEach bool
}

// newStage makes the stage of a specification.
func newStage(spec StageSpec) *stage {
	st := &stage{spec: spec}
	if spec.Remote != nil {
		st.remote = &RemoteStage{stage: st, spec: *spec.Remote, tasks: make(map[*remoteTask]struct{})}
	}
	return st
}

// shared reports whether one actor serves many requests.
func (st *stage) shared() bool { return st.spec.Batch != nil || st.spec.Props != nil }

// bound is how many requests may be open at the stage, except to break a circle.
func (st *stage) bound() int { return st.spec.Replicas * st.spec.MaxInflight }

// passive reports whether the stage does nothing at the end of a request's inputs. Of a stage that no
// process has served yet it is not known.
func (st *stage) passive() bool {
	if st.remote != nil {
		return st.remote.passive()
	}
	return st.spec.End == nil && st.spec.Props == nil
}

// start makes the stage's slots and their actors. The replicas are interleaved: requests then
// spread over them.
func (st *stage) start(b *Bus) error {
	st.handlerLocks = make([]handlerLock, st.spec.Replicas)
	for r := range st.handlerLocks {
		st.handlerLocks[r] = st.newHandlerLock()
	}
	for range st.bound() {
		s, err := st.makeSlot(b)
		if err != nil {
			return err
		}
		st.free = append(st.free, s)
	}
	return nil
}

func (st *stage) newHandlerLock() (t handlerLock) {
	if st.remote != nil {
		return t
	}
	if t.runs = st.runs; t.runs == nil {
		t.runs = scoreboard.New()
	}
	if !st.shared() {
		t.mu = new(lockorder.Right[lockorder.StageTurn])
	}
	return t
}

// makeSlot makes one slot more, which stays until the bus is closed. It waits for the supervisor.
func (st *stage) makeSlot(b *Bus) (*slot, error) {
	b.admission.mu.Lock()
	i := st.made
	st.made++
	b.admission.mu.Unlock()
	replica, above := i%st.spec.Replicas, i >= st.bound()
	if st.shared() && i >= st.spec.Replicas {
		return &slot{st.workers[replica], above}, nil // which are no more by then
	}
	w, err := st.spawn(b, replica, i/st.spec.Replicas)
	return &slot{w, above}, err
}

func (st *stage) spawn(b *Bus, replica, i int) (*worker, error) {
	name := fmt.Sprintf("%s/%d/%d", st.spec.Name, replica, i)
	w := &worker{bus: b, stage: st, replica: replica, handlerLock: st.handlerLocks[replica], producer: b.writer.NewProducer()}
	w.log = b.opts.Logger.With("stage", name)
	// Credit bounds what a mailbox holds, so that no post has to wait, which is made under locks.
	opts := actors.StageOptions{Mailbox: actors.MailboxOptions{Bounded: func(any) bool { return false }}, Props: st.spec.Props}
	if st.spec.Batch != nil {
		w.batcher = actors.NewBatcher(st.spec.BatchSize, st.spec.BatchWait, w.runBatch, func(batch uint64) {
			w.actor.Post(batchDue{batch})
		})
	}
	var err error
	w.actor, err = b.system.Spawn(name, w.receiver(), opts)
	b.admission.mu.Lock()
	st.workers = append(st.workers, w)
	b.admission.mu.Unlock()
	return w, err
}

// handlerLock is the right to run a handler of one replica, and what the handler does. The zero turn is for
// emissions that no handler makes.
type handlerLock struct {
	mu   *lockorder.Right[lockorder.StageTurn] // nil: one actor runs all handlers
	runs *scoreboard.Writer                    // nil: other processes run the handlers
}

// lock has a handler run, which has run for some time before it gave the turn up; below 0: no handler did.
func (t handlerLock) lock(request messages.RequestID, ran time.Duration) {
	if t.mu != nil {
		t.mu.Lock()
	}
	if t.runs != nil && ran >= 0 {
		t.runs.Begin(uint64(request), ran)
	}
}

// unlock gives the turn up when the handler has returned.
func (t handlerLock) unlock() {
	if t.runs != nil {
		t.runs.End()
	}
	if t.mu != nil {
		t.mu.Unlock()
	}
}

// pause gives the turn up while the handler waits for the bus. It returns how long the handler has run.
func (t handlerLock) pause() (ran time.Duration) {
	if t.runs != nil {
		ran = t.runs.Pause()
	}
	if t.mu != nil {
		t.mu.Unlock()
	}
	return ran
}
