package bus

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/pool"
)

// stage is one node of the graph, with its slots.
type stage struct {
	spec     StageSpec
	index    int // in topological order
	in, out  []*edge
	inPorts  []Port
	outPorts []Port
	slots    pool.Pool[*slot]
	workers  []*worker
	remote   *Station // nil: the work is done here

	// oneEach has a batch's handler get one delivery of each request at a time:
	// the host then knows what each emission was made for.
	oneEach bool
}

// newStage makes the stage of a specification. Where other processes do the
// work, its handler hands it to them.
func newStage(spec StageSpec) *stage {
	st := &stage{spec: spec}
	if spec.Remote == nil {
		return st
	}
	st.remote = &Station{stage: st, spec: *spec.Remote, tasks: make(map[*remoteTask]struct{})}
	if spec.Remote.Join {
		st.spec.Join = st.remote.handle
	} else {
		st.spec.Handle = func(t *Task, d *Delivery) error { return st.remote.handle(t, []*Delivery{d}) }
	}
	return st
}

// slot is the right of one request to be open at a stage, and the actor that
// serves it there. The slots of a batching stage, or of a user's actor, share
// one actor for each replica; elsewhere each slot has its own.
type slot struct{ worker *worker }

// shared reports whether one actor serves many requests.
func (st *stage) shared() bool { return st.spec.Batch != nil || st.spec.Props != nil }

// start spawns the stage's actors.
func (st *stage) start(b *Bus) error {
	slots := make([]*slot, st.spec.Replicas*st.spec.MaxInflight)
	for r := range st.spec.Replicas {
		var t turn
		if !st.shared() && st.remote == nil && st.spec.MaxInflight > 1 {
			t.mu = new(lockorder.Right[lockorder.StageTurn])
		}
		actorsPerReplica := st.spec.MaxInflight
		if st.shared() {
			actorsPerReplica = 1
		}
		for i := range actorsPerReplica {
			w, err := st.spawn(b, r, i, t)
			if err != nil {
				return err
			}
			// The replicas are interleaved: requests then spread over them.
			for s := &(slot{worker: w}); i < st.spec.MaxInflight; i += actorsPerReplica {
				slots[i*st.spec.Replicas+r] = s
			}
		}
	}
	st.slots.Add(slots...)
	return nil
}

func (st *stage) spawn(b *Bus, replica, i int, t turn) (*worker, error) {
	name := fmt.Sprintf("%s/%d/%d", st.spec.Name, replica, i)
	w := &worker{bus: b, stage: st, replica: replica, turn: t, producer: b.writer.NewProducer()}
	w.log = b.opts.Logger.With("stage", name)
	opts := actors.StageOptions{Mailbox: st.mailbox(), Props: st.spec.Props}
	if st.spec.Batch != nil {
		w.batcher = actors.NewBatcher(st.spec.BatchSize, st.spec.BatchWait, w.runBatch, func(batch uint64) {
			w.actor.Post(batchDue{batch})
		})
	}
	var err error
	w.actor, err = b.system.Spawn(name, w, opts)
	st.workers = append(st.workers, w)
	return w, err
}

// mailbox bounds a mailbox by what the credit of all slots lets into it, with
// the ends of their streams: a post within it never waits. Where that is more
// than a mailbox can be told, the credit alone is the bound.
func (st *stage) mailbox() actors.MailboxOptions {
	perRequest := 0
	for _, e := range st.in {
		perRequest += 1 + int(min(e.window, uint64(e.windowBytes/payloadAlign)))
	}
	if st.shared() {
		perRequest *= st.spec.MaxInflight
	}
	// A request that ended may leave as much behind as its successor brings.
	if bound := 2 * perRequest; bound <= actors.MaxMailboxCapacity {
		return actors.MailboxOptions{Capacity: bound, Bounded: isDelivery}
	}
	return actors.MailboxOptions{Bounded: func(any) bool { return false }}
}

func isDelivery(message any) bool {
	_, ok := message.(*Delivery)
	return ok
}

// turn is the right to run a handler of one replica. The zero turn is for
// stages where nobody else could want it.
type turn struct {
	mu *lockorder.Right[lockorder.StageTurn]
}

func (t turn) enter() {
	if t.mu != nil {
		t.mu.Lock()
	}
}

func (t turn) leave() {
	if t.mu != nil {
		t.mu.Unlock()
	}
}
