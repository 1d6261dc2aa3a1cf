package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/config"
)

// Names of the stages. side is a first stage too, where the second one joins.
const stageFirst, stageSide, stageSecond = "first", "side", "second"

// slowness is what a slow stage takes for every fourth payload.
const slowness = 2 * time.Millisecond

// A work is what a stage of a cell does, in any process.
type work struct {
	stage string
	cell  *cell
	fault string // see faults_linux_test.go
}

// emissions is how many payloads go out for each that comes in.
func (w *work) emissions() uint32 {
	if w.stage == stageSecond {
		return 1
	}
	return uint32(w.cell.emissions())
}

func (w *work) slow() bool {
	return w.stage == stageFirst && w.cell[dimPace] == paceSlowFirst ||
		w.stage == stageSecond && w.cell[dimPace] == paceSlowSecond
}

// spec is the stage for a kind.
func (w *work) spec(kind string) (bus.StageSpec, error) {
	spec := bus.StageSpec{Name: w.stage}
	switch kind {
	case kindHandle, kindNode:
		spec.Handle = w.handle
	case kindBatch, kindNodeBatch:
		spec.Batch = w.batch
	case kindJoin, kindNodeJoin:
		spec.Join = func(t *bus.Task, parts []*bus.Delivery) error { return w.emitFor(t.Emitter, parts) }
	case kindActor:
		spec.Props = actor.PropsFromProducer(func() actor.Actor { return &holder{work: w} })
	default:
		return spec, fmt.Errorf("no program in Go has a stage of kind %q", kind)
	}
	return spec, nil
}

func (w *work) handle(t *bus.Task, d *bus.Delivery) error {
	if err := w.inState(t, d); err != nil {
		return err
	}
	if w.faulty(faultLeakDelivery, d) {
		d.Keep()
		return nil
	}
	return w.emitFor(t.Emitter, []*bus.Delivery{d})
}

// inState keeps count of a request's deliveries, where the stage has state.
func (w *work) inState(t *bus.Task, d *bus.Delivery) error {
	if w.cell[dimState] == stateNone {
		return nil
	}
	count, _ := t.State.(uint64)
	if count += d.Dropped; d.Seq != count {
		return fmt.Errorf("%w: sequence %d comes when %d were handled or dropped", errPayload, d.Seq, count)
	}
	t.State = count + 1
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

// emitFor emits what the stage makes of a delivery, or of those of a join.
func (w *work) emitFor(to bus.Emitter, parts []*bus.Delivery) error {
	headers := make([]header, len(parts))
	for i, d := range parts {
		if d.Bare() {
			return nil
		}
		p, err := plain(d)
		if err != nil {
			return err
		}
		if headers[i], err = parse(p); err != nil {
			return fmt.Errorf("stage %s: %w", w.stage, err)
		}
		if headers[i].tag != headers[0].tag || headers[i].seq != headers[0].seq {
			return fmt.Errorf("stage %s: %w: %+v is joined with %+v", w.stage, errPayload, headers[0], headers[i])
		}
	}
	if w.slow() && headers[0].chain%4 == 0 {
		time.Sleep(slowness)
	}
	out := make([]header, w.emissions())
	for j := range out {
		out[j] = next(w.stage, uint32(j), w.emissions(), headers...)
	}
	for _, p := range w.spoil(out) {
		if err := send(to, p); err != nil {
			return err
		}
	}
	return nil
}

// send emits a payload: as a copy, or filled in place.
func send(to bus.Emitter, p []byte) error {
	if p[16]%2 == 0 { // of the chain
		return to.EmitBytes(p)
	}
	b, err := to.Reserve(len(p), codec.IDRaw)
	if err != nil {
		return err
	}
	copy(b.Bytes(), p)
	return b.Send(len(p))
}

// plain is the payload of a delivery. What a function in Python returns is msgpack.
func plain(d *bus.Delivery) (p []byte, err error) {
	if d.PayloadCodec() == codec.IDMsgpack {
		err = d.Decode(&p)
		return p, err
	}
	return d.Bytes(), nil
}

// holder is an actor that holds one delivery until the next one comes, or the end of a stream.
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
	for name, kind := range c.stages() {
		all[name] = func(config.Work) (bus.StageSpec, error) {
			return (&work{name, c, fault}).spec(kind)
		}
	}
	return all
}

// serveStage is the process of a stage in a Go node.
func serveStage(c *cell) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	name := os.Getenv(node.EnvStage)
	spec, err := (&work{name, c, os.Getenv(faultEnv)}).spec(c.stages()[name])
	if err != nil {
		return err
	}
	n, err := node.Join(ctx, name, node.JoinOptions{})
	if err != nil {
		return err
	}
	return errors.Join(n.Serve(ctx, spec), n.Close(context.Background()))
}
