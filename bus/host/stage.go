package host

import (
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// maxServed bounds how often a client may say that it serves a stage: each time it
// is one more replica, which all who route to the stage look at.
const maxServed = 1024

// serve makes the client a replica of a stage.
func (s *session) serve(m *wire.Serve) error {
	st, here := s.srv.backend.RemoteStage(m.Stage)
	refuse := func(code wire.Code, format string, args ...any) error {
		s.queue(&wire.Failed{Token: m.Token, Code: code, Text: fmt.Sprintf(format, args...)})
		return nil
	}
	served := len(s.replicas.list())
	switch {
	case here:
		return refuse(wire.CodeTaken, "the stage %q runs inside the host", m.Stage)
	case st == nil:
		return refuse(wire.CodeUnknown, "the bus %q has no stage %q: its stages are %s", s.srv.services.Name, m.Stage, s.srv.services.Stages)
	case served >= maxServed:
		return refuse(wire.CodeOverloaded, "this client serves stages as %d replicas, and may be no more", served)
	}
	from := 0
	if f := s.srv.opts.Number; f != nil {
		from = max(f(m.Stage, s.proc.PID()), 0)
	}
	rep := st.Attach(s, from, m.Flags&wire.ServeEnds != 0)
	number := s.replicas.add(rep)
	s.queue(&wire.Serving{
		Token: m.Token, Stage: uint32(number), Replica: uint32(rep.Number),
		MaxInflight: uint32(rep.Requests), State: rep.State, Join: rep.Join, Batch: uint32(rep.Batch),
		Inputs: wireEdges(rep.Ins), Outputs: wireEdges(rep.Outs), Tensors: wireTensors(rep.Outs),
	})
	if f := s.srv.opts.OnServe; f != nil {
		f(rep.Stage, rep.Number, s.proc.PID())
	}
	rep.Begin()
	return nil
}

// leave lets the client have no more tasks of stages that it serves; without numbers of
// any.
func (s *session) leave(stages ...uint32) error {
	replicas := s.replicas.list()
	left := make([]*bus.Replica, 0, len(replicas))
	for _, number := range stages {
		if int(number) >= len(replicas) {
			return fmt.Errorf("%w: it leaves stage %d of %d that it serves", wire.ErrProtocol, number, len(replicas))
		}
		left = append(left, replicas[number])
	}
	if len(stages) == 0 {
		left = replicas
	}
	for _, rep := range left {
		rep.Retire()
	}
	return nil
}

// OpenTask announces a task. It is called with the stage's lock held.
func (s *session) OpenTask(p *bus.ReplicaTask) {
	src := &source{task: p}
	a := p.Assign(src, s.ctx.Done())
	src.emitter, src.req, src.busTask, src.ports = a.Output, a.Request, a.Task, a.Ports
	_ = s.newSource(src) // one that is gone is told for nothing
	stage := s.replicas.number(a.Replica)
	s.later(&wire.Open{ // a delivery follows, or the end
		Task: src.id, Stage: uint32(stage), Request: uint64(a.Task.Request()), Attempt: uint32(a.Attempt),
		TimeLeft: hostnode.TimeLeft(a.Deadline), Trace: hostnode.Trace(a.Trace),
	})
}

// DeliverWork hands a work to the client, or nothing of it after an error. It is
// called with the stage's lock held.
func (src *source) DeliverWork(w *bus.Work, parts []*bus.Delivery) (taken bool, err error) {
	at, err := src.sess.locateAll(parts)
	if err != nil {
		return false, err
	}
	for i, d := range parts {
		if src.sess.deliver(src, d, w, d.Control().Stream().In, at[i], i < len(parts)-1) != 0 {
			taken = true
		}
	}
	return taken, nil
}

// deliver sends a delivery to the client.
func (s *session) deliver(src *source, d *bus.Delivery, w *bus.Work, edge int, at accounts.Location, more bool) uint32 {
	m := wire.Deliver{
		Source: src.id, Edge: uint16(edge), Codec: uint32(d.PayloadCodec()), Attempt: d.Attempt,
		Seq: d.Seq, Dropped: d.Dropped, Size: uint64(d.Size()), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	if more {
		m.Flags |= wire.FlagMore
	}
	if d.Control().Stream().Awaited {
		m.Flags |= wire.FlagAwaited
	}
	direct := s.directFrom(src, d, edge)
	if at.Seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	} else {
		m.Offset = at.Offset
	}
	h := &handed{d: d, work: w}
	h.hold = accounts.Hold{Delivery: h, At: time.Now(), Bytes: d.Size()}
	if w != nil {
		h.hold.Source = src.id
	}
	err := s.account.Hold(&h.hold, at, func(number, segment uint32) error {
		m.Delivery, m.Segment = number, segment
		s.said.deliver = m // which costs no memory
		s.queueFor(d.Control().Stream().Request, &s.said.deliver)
		s.said.deliver = wire.Deliver{}
		return nil
	})
	if err != nil { // detach finds the work without a number
		return 0
	}
	if direct != nil {
		s.direct.expect(src.id, direct)
		s.queue(&wire.Expect{Source: src.id, Edge: uint16(edge), Peer: direct.producer.sess.node})
	}
	return m.Delivery
}

// finish ends the work on a delivery, behind what was emitted before, or gives back a value.
func (s *session) finish(m *wire.Finish) error {
	source, value, ok := s.account.Finishing(m.Delivery)
	if !ok {
		return fmt.Errorf("%w: delivery %d is not the client's to finish", wire.ErrProtocol, m.Delivery)
	}
	if value != nil {
		return finishFetched(value.(*exchange.Fetched), m) //nolint:forcetypeassert // an account has no others
	}
	id, flags, code, text := m.Delivery, m.Flags, m.Code, m.Text
	return s.behind(source, func() error { return s.finishHeld(id, flags, code, text) })
}

// finishHeld finishes a delivery that the client has.
func (s *session) finishHeld(id uint32, flags uint8, code wire.Code, text string) error {
	d, fills := s.account.Finish(id, flags&wire.FinishKeep != 0)
	h, has := d.(*handed)
	if !has {
		return fmt.Errorf("%w: delivery %d was finished before", wire.ErrProtocol, id)
	}
	if fills && !s.keptSaid.Swap(true) {
		s.warnKept()
	}
	if flags&wire.FinishKeep != 0 {
		s.warnFiles()
	}
	if h.work == nil {
		_ = h.d.Finish(nil) // in the client's hands alone until now
		return nil
	}
	var err error
	if code != wire.OK && !tooEarly(h.d.Control().Stream().Request, code) {
		err = errors.New(text)
	}
	h.work.Finished(err, flags&wire.FinishHandled != 0)
	return nil
}

// tooEarly reports whether a client takes the deadline of a request for over that is not over by the clock of the
// host. The request then ends at its deadline, by that clock.
func tooEarly(r *bus.Request, code wire.Code) bool {
	return code == wire.CodeOver && r.Control().EndsAtDeadline()
}

// releaseKept gives back a payload that outlived its delivery.
func (s *session) releaseKept(id uint32) error {
	if !s.account.Release(id) {
		return fmt.Errorf("%w: the payload of delivery %d was not kept, or was released before", wire.ErrProtocol, id)
	}
	return nil
}

// EndTask asks for what is left of a task. It is called with the stage's lock
// held.
func (src *source) EndTask() { src.sess.queueFor(src.req, &wire.End{Task: src.id}) }

// ended handles the answer to it, behind what was emitted before.
func (s *session) ended(m *wire.Ended) error {
	src, err := s.source(m.Task)
	if src == nil || err != nil {
		return err
	}
	if src.task == nil || (m.Code == wire.OK && !src.task.MayEnd()) {
		return fmt.Errorf("%w: task %d was not asked to end", wire.ErrProtocol, m.Task)
	}
	if tooEarly(src.req, m.Code) {
		return nil
	}
	var failure error
	if m.Code != wire.OK {
		failure = errors.New(m.Text)
		if m.Edge != "" {
			failure = &bus.StageError{Stage: src.busTask.Stage(), Edge: m.Edge, Key: m.Key, Seq: m.Seq, Err: failure}
		}
	}
	return src.do(orSkip(func() error {
		s.dropSource(src.id)
		if n := src.task.TaskEnded(failure); n > 0 {
			return fmt.Errorf("%w: task %d has ended, and the client has not finished %d inputs of it", wire.ErrProtocol, src.id, n)
		}
		return nil
	}))
}

// TaskOver tells the client to stop, unless it has by itself and says so. It is called with the
// stage's lock held.
func (src *source) TaskOver(known bool) {
	if !known {
		o := src.req.Outcome()
		if o == bus.Running { // the rest of the request goes on, and this part is complete
			o = bus.Completed
		}
		src.sess.queueFor(src.req, hostnode.Over(src.id, o, src.req.Err()))
	}
	src.sess.dropSource(src.id)
}

// handed is a delivery that the client has.
type handed struct {
	hold accounts.Hold
	d    *bus.Delivery
	work *bus.Work // that it is a part of; nil: a result
}

// Hold implements accounts.Delivery.
func (h *handed) Hold() accounts.Held { return h.d.Control().Hold() }
