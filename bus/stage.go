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
	remote       *RemoteStage       // nil: this process serves the stage
	runs         *scoreboard.Writer // of a node's stage, which has one replica: the host reads it; nil: another stage
	handlerLocks []handlerLock      // by replica

	// Guarded by admission.mu.
	workers       []*worker
	made          int     // number of slots made so far
	free          []*slot // idle, of those made at the start
	spare         []*slot // idle, of those made above the bound
	holders       []*Task // tasks that have a slot
	waits         []*Task // tasks that wait for a slot, in the order of Request.compare
	admittedAbove int64   // slots granted above the bound so far
	stuck         bool    // used by admission.oldestOnCycle

	// oneEach limits a batch to one delivery of each request: then the
	// host knows for which delivery each emission was made.
	oneEach bool
}

// newStage makes a stage of a specification.
func newStage(spec StageSpec) *stage {
	st := &stage{spec: spec}
	if spec.Remote != nil {
		st.remote = &RemoteStage{stage: st, spec: *spec.Remote, tasks: make(map[*remoteTask]struct{})}
	}
	return st
}

// shared reports whether one actor serves many requests.
func (st *stage) shared() bool { return st.spec.Batch != nil || st.spec.Props != nil }

// bound is how many requests may be open at the stage, except for those that break a cycle.
func (st *stage) bound() int { return st.spec.Replicas * st.spec.MaxInflight }

// passive reports whether the stage is known to do nothing at the end of a request's inputs: a stage
// that no process serves is not passive.
func (st *stage) passive() bool {
	if st.remote != nil {
		return st.remote.passive()
	}
	return st.spec.End == nil && st.spec.Props == nil
}

// start makes the stage's slots and their actors. The slots of the replicas are interleaved, so that
// requests spread over the replicas.
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
		t.mu = new(lockorder.Right[lockorder.HandlerLock])
	}
	return t
}

// makeSlot makes another slot, which stays until the bus is closed. It waits for the supervisor.
func (st *stage) makeSlot(b *Bus) (*slot, error) {
	b.admission.mu.Lock()
	i := st.made
	st.made++
	b.admission.mu.Unlock()
	replica, above := i%st.spec.Replicas, i >= st.bound()
	if st.shared() && i >= st.spec.Replicas {
		return &slot{st.workers[replica], above}, nil // after the first slots no worker is added
	}
	w, err := st.spawn(b, replica, i/st.spec.Replicas)
	return &slot{w, above}, err
}

func (st *stage) spawn(b *Bus, replica, i int) (*worker, error) {
	name := fmt.Sprintf("%s/%d/%d", st.spec.Name, replica, i)
	w := &worker{bus: b, stage: st, replica: replica, handlerLock: st.handlerLocks[replica], producer: b.writer.NewProducer()}
	w.log = b.opts.Logger.With("stage", name)
	// Credit bounds the mailbox, so that posts, which are made under locks, never wait.
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

// handlerLock is the right to run a handler of one replica, and the record of the running handler. The zero value
// is for emissions outside a handler.
type handlerLock struct {
	mu   *lockorder.Right[lockorder.HandlerLock] // nil: one actor runs all handlers
	runs *scoreboard.Writer                      // nil: other processes run the handlers
}

// lock takes the lock for a handler. ran is for how long the handler has run before pause; below 0: no handler
// runs.
func (t handlerLock) lock(request messages.RequestID, ran time.Duration) {
	if t.mu != nil {
		t.mu.Lock()
	}
	if t.runs != nil && ran >= 0 {
		t.runs.Begin(uint64(request), ran)
	}
}

// unlock releases the lock when the handler has returned.
func (t handlerLock) unlock() {
	if t.runs != nil {
		t.runs.End()
	}
	if t.mu != nil {
		t.mu.Unlock()
	}
}

// pause releases the lock while the handler waits for the bus. It returns how long the handler has run.
func (t handlerLock) pause() (ran time.Duration) {
	if t.runs != nil {
		ran = t.runs.Pause()
	}
	if t.mu != nil {
		t.mu.Unlock()
	}
	return ran
}
