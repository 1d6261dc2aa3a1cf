package bus_test

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/bus"
)

// This file makes the stages that TestAgainstModel draws.

func (m *model) pipeline() bus.Pipeline {
	p := bus.Pipeline{Edges: m.edges}
	for _, st := range m.stages {
		p.Stages = append(p.Stages, m.spec(st))
	}
	return p
}

func (m *model) spec(st modelStage) bus.StageSpec {
	spec := bus.StageSpec{Name: st.name, Replicas: st.slots[0], MaxInflight: st.slots[1], State: bus.StateNone, Attempts: modelAttempts}
	switch st.kind {
	case batches:
		spec.Batch, spec.BatchSize = m.batch(st), 3
	case keeps:
		spec.State, spec.Handle = bus.StateRequest, m.keep(st)
	case joins:
		spec.Join = m.join(st)
	case counts:
		spec.State, spec.Replay, spec.Handle = bus.StateRequest, true, m.count(st)
	case totals:
		spec.State, spec.Replay, spec.Handle, spec.End = bus.StateRequest, true, m.count(st), m.total(st)
	default:
		spec.Handle = m.relay(st)
	}
	return spec
}

// trip panics for a quarter of all inputs of a stage that may panic, the first
// time that the stage gets such an input.
func (m *model) trip(t *bus.Task, st modelStage, place uint64, in string) {
	if !st.panics || hashOf(st, in)%4 != 0 {
		return
	}
	key := fmt.Sprint(t.Request(), st.name, place)
	m.mu.Lock()
	first := !m.tripped[key]
	m.tripped[key] = true
	m.mu.Unlock()
	if first {
		panic("planned: " + key)
	}
}

// work emits the outputs of a stage for one input. It may panic before or after
// its first output.
func (m *model) work(st modelStage, t *bus.Task, d *bus.Delivery, n int, in, other string) error {
	early := len(in)%2 == 0
	if early {
		m.trip(t, st, d.Seq, in)
	}
	for _, out := range st.outputs(n, in, other) {
		if err := t.Emit(out); err != nil {
			return err
		}
		m.trip(t, st, d.Seq, in)
	}
	return nil
}

func (m *model) relay(st modelStage) bus.Handler {
	return func(t *bus.Task, d *bus.Delivery) error {
		in, err := bus.Result[string](d)
		if err != nil {
			return err
		}
		return m.work(st, t, d, 0, in, "")
	}
}

func (m *model) count(st modelStage) bus.Handler {
	return func(t *bus.Task, d *bus.Delivery) error {
		in, err := bus.Result[string](d)
		if err != nil {
			return err
		}
		n, _ := t.State.(int)
		t.State = n + 1
		return m.work(st, t, d, n, in, "")
	}
}

func (m *model) total(st modelStage) func(*bus.Task) error {
	return func(t *bus.Task) error {
		n, _ := t.State.(int)
		m.trip(t, st, modelStream, "")
		return t.Emit(fmt.Sprint(st.name, n))
	}
}

func (m *model) join(st modelStage) bus.JoinHandler {
	return func(t *bus.Task, parts []*bus.Delivery) error {
		a, err := bus.Result[string](parts[0])
		if err != nil {
			return err
		}
		b, err := bus.Result[string](parts[1])
		if err != nil {
			return err
		}
		return m.work(st, t, parts[0], 0, a, b)
	}
}

func (m *model) batch(st modelStage) bus.BatchHandler {
	return func(batch []*bus.Delivery) error {
		for _, d := range batch {
			if err := m.relay(st)(d.Task(), d); err != nil {
				return err
			}
		}
		return nil
	}
}

// keep finishes the kept deliveries on other goroutines, one after the other.
func (m *model) keep(st modelStage) bus.Handler {
	return func(t *bus.Task, d *bus.Delivery) error {
		before, _ := t.State.(chan struct{})
		done := make(chan struct{})
		t.State = done
		k := d.Keep()
		go func() {
			defer close(done)
			if before != nil {
				<-before
			}
			in, err := bus.Result[string](k.Delivery())
			if err == nil {
				err = k.Emit(st.outputs(0, in, "")[0])
			}
			_ = k.Finish(err)
		}()
		return nil
	}
}
