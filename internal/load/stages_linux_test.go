package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/config"
)

// slowness is the time that a slow stage takes for every fourth payload.
const slowness = 2 * time.Millisecond

// A work is the work of a stage of a cell, in any process.
type work struct {
	stage string
	cell  *cell
	fault string // see faults_linux_test.go

	handled atomic.Pointer[[]string] // gates of the requests that were handled last: see gated
}

// emissions is how many payloads the stage emits for each input.
func (w *work) emissions() uint32 {
	if w.stage == stageFirst || w.stage == stageSide {
		return uint32(w.cell.emissions())
	}
	return 1
}

// spec returns the stage of a kind.
func (w *work) spec(kind string) (bus.StageSpec, error) {
	spec := bus.StageSpec{Name: w.stage}
	switch kind {
	case kindHandle, kindNode:
		spec.Handle = w.handle
	case kindBatch, kindNodeBatch:
		spec.Batch = func(batch []*bus.Delivery) error {
			return w.gated(func() error { return w.batch(batch) }, batch...)
		}
	case kindJoin, kindNodeJoin:
		spec.Join = w.join
	case kindActor:
		spec.Props = actor.PropsFromProducer(func() actor.Actor { return &holder{work: w} })
	default:
		return spec, fmt.Errorf("no program in Go has a stage of kind %q", kind)
	}
	if w.fault == faultEnd && w.stage == w.cell.slowStage() {
		spec.End = func(*bus.Task) error { return nil }
	}
	return spec, nil
}

func (w *work) handle(t *bus.Task, d *bus.Delivery) error {
	if err := w.inState(t, d); err != nil {
		return err
	}
	if w.hasFault(faultLeakDelivery, d) {
		d.Keep()
		return nil
	}
	return w.gated(func() error { return w.emitFor(t.Emitter, []*bus.Delivery{d}) }, d)
}

func (w *work) join(t *bus.Task, parts []*bus.Delivery) error {
	return w.gated(func() error { return w.emitFor(t.Emitter, parts) }, parts...)
}

// inState counts a request's deliveries on each edge, where the stage has state.
func (w *work) inState(t *bus.Task, d *bus.Delivery) error {
	if w.cell[dimState] == stateNone {
		return nil
	}
	counts, ok := t.State.(map[string]uint64)
	if !ok {
		counts = make(map[string]uint64)
		t.State = counts
	}
	if counts[d.Edge] += d.Dropped; d.Seq != counts[d.Edge] {
		return fmt.Errorf("%w: sequence %d after %d that were handled or dropped", errPayload, d.Seq, counts[d.Edge])
	}
	counts[d.Edge]++
	return nil
}

func (w *work) batch(batch []*bus.Delivery) error {
	for _, d := range batch {
		if d.Bare() {
			continue
		}
		if err := w.emitFor(d.Task().Emitter, []*bus.Delivery{d}); err != nil {
			if finished := d.Finish(err); finished != nil {
				return finished
			}
		}
	}
	return nil
}

// emitFor emits the stage's payloads for a delivery, or for the deliveries of a join.
func (w *work) emitFor(to bus.Emitter, parts []*bus.Delivery) error {
	headers := make([]header, len(parts))
	for i, d := range parts {
		if d.Bare() {
			return nil
		}
		var err error
		if headers[i], err = headerOf(d); err != nil {
			return fmt.Errorf("stage %s: %w", w.stage, err)
		}
		if headers[i].tag != headers[0].tag || headers[i].seq != headers[0].seq {
			return fmt.Errorf("stage %s: %w: %+v is joined with %+v", w.stage, errPayload, headers[0], headers[i])
		}
	}
	if w.cell[dimPace] != paceGated && w.stage == w.cell.slowStage() && headers[0].chain%4 == 0 {
		time.Sleep(slowness)
	}
	out := make([]header, w.emissions())
	for j := range out {
		out[j] = next(w.stage, uint32(j), w.emissions(), headers...)
	}
	for _, p := range w.payloads(out) {
		if w.stage != stageFirst || !w.cell.routed() {
			if err := send(to, p); err != nil {
				return err
			}
			continue
		}
		for _, branch := range w.cell.branchesOf(headers[0].tag) {
			if err := send(to, p, bus.To(branch)); err != nil {
				return err
			}
		}
	}
	return nil
}

// send emits a payload: as a copy, or filled in place.
func send(to bus.Emitter, p []byte, opts ...bus.EmitOption) error {
	if p[16]%2 == 0 { // a byte of the chain
		return to.EmitBytes(p, opts...)
	}
	b, err := to.Reserve(len(p), codec.IDRaw, opts...)
	if err != nil {
		return err
	}
	copy(b.Bytes(), p)
	return b.Send(len(p))
}

// plain returns the payload of a delivery. The return value of a function in Python is msgpack.
func plain(d *bus.Delivery) (p []byte, err error) {
	if d.PayloadCodec() == codec.IDMsgpack {
		err = d.Decode(&p)
		return p, err
	}
	return d.Bytes(), nil
}

func headerOf(d *bus.Delivery) (header, error) {
	p, err := plain(d)
	if err != nil {
		return header{}, err
	}
	return parse(p)
}

// holder is an actor that holds one delivery until the next one, or the end of a stream, arrives.
type holder struct {
	work *work
	held []*bus.Delivery
}

// Receive implements actor.Actor.
func (h *holder) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *bus.Delivery:
		last := m.EOS
		h.held = append(h.held, m)
		if len(h.held) > 1 || last {
			h.flush(func(*bus.Delivery) bool { return true })
		}
	case *bus.Ended:
		h.flush(func(d *bus.Delivery) bool { return d.Task() == m.Task })
	}
}

func (h *holder) flush(which func(d *bus.Delivery) bool) {
	h.held = slices.DeleteFunc(h.held, func(d *bus.Delivery) bool {
		if !which(d) {
			return false
		}
		_ = d.Finish(h.work.emitFor(d.Task().Emitter, []*bus.Delivery{d})) // it is finished once
		return true
	})
}

// factories are the stages in the process of a host.
func factories(c *cell, fault string) map[string]config.Factory {
	all := make(map[string]config.Factory)
	for _, name := range c.stages() {
		all[name] = func(config.Work) (bus.StageSpec, error) {
			return (&work{stage: name, cell: c, fault: fault}).spec(c.kind(name))
		}
	}
	return all
}

// serveStage is the process of a stage in a Go node.
func serveStage(c *cell) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	name := os.Getenv(node.EnvStage)
	spec, err := (&work{stage: name, cell: c, fault: os.Getenv(faultEnv)}).spec(c.kind(name))
	if err != nil {
		return err
	}
	n, err := node.Join(ctx, name, node.JoinOptions{})
	if err != nil {
		return err
	}
	return errors.Join(n.Serve(ctx, spec), n.Close(context.Background()))
}
