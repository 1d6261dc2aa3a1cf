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

// maxServed bounds how often a client may serve a stage. Each time adds a replica, and routing to the
// stage considers every replica.
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
		return refuse(wire.CodeOverloaded, "this client serves stages as %d replicas, the most that a client may be", served)
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

// leaveStages stops new tasks of the given stages, or of all stages that the client serves if none is
// given.
func (s *session) leaveStages(stages ...uint32) error {
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

// OpenTask implements bus.ReplicaConn: it announces a task. It is called with the stage's lock held.
func (s *session) OpenTask(p *bus.ReplicaTask) {
	src := &source{task: p}
	a := p.Assign(src, s.ctx.Done())
	src.emitter, src.req, src.busTask, src.ports = a.Output, a.Request, a.Task, a.Ports
	_ = s.newSource(src) // if the client has departed, it gets no message
	stage := s.replicas.number(a.Replica)
	s.queueLater(&wire.Open{ // a delivery follows, or the end
		Task: src.id, Stage: uint32(stage), Request: uint64(a.Task.Request()), Attempt: uint32(a.Attempt),
		TimeLeft: hostnode.TimeLeft(a.Deadline), Trace: hostnode.Trace(a.Trace),
	})
}

// DeliverWork sends all parts of a work to the client, or none of them if it returns an error. It is
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
	h := &sentDelivery{d: d, work: w}
	h.hold = accounts.Hold{Delivery: h, At: time.Now(), Bytes: d.Size()}
	if w != nil {
		h.hold.Source = src.id
	}
	err := s.account.AddAndSend(&h.hold, at, func(number, segment uint32) error {
		m.Delivery, m.Segment = number, segment
		s.outgoing.deliver = m // the field spares an allocation
		s.queueFor(d.Control().Stream().Request, &s.outgoing.deliver)
		s.outgoing.deliver = wire.Deliver{}
		return nil
	})
	if err != nil { // Detach finds the work without a number
		return 0
	}
	if direct != nil {
		s.direct.expect(src.id, direct)
		s.queue(&wire.Expect{Source: src.id, Edge: uint16(edge), Peer: direct.producer.sess.node})
	}
	return m.Delivery
}

// finish finishes a delivery, after the emissions before it, or gives back a value of the exchange.
func (s *session) finish(m *wire.Finish) error {
	source, value, ok := s.account.Finishing(m.Delivery)
	if !ok {
		return fmt.Errorf("%w: delivery %d is not the client's to finish", wire.ErrProtocol, m.Delivery)
	}
	if value != nil {
		return finishFetched(value.(*exchange.Fetched), m) //nolint:forcetypeassert // an account has no others
	}
	id, flags, code, text := m.Delivery, m.Flags, m.Code, m.Text
	return s.inSourceOrder(source, func() error { return s.finishHeld(id, flags, code, text) })
}

// finishHeld finishes a delivery that the client holds.
func (s *session) finishHeld(id uint32, flags uint8, code wire.Code, text string) error {
	d, fills := s.account.Finish(id, flags&wire.FinishKeep != 0)
	h, has := d.(*sentDelivery)
	if !has {
		return fmt.Errorf("%w: delivery %d was finished before", wire.ErrProtocol, id)
	}
	if fills && !s.keptLogged.Swap(true) {
		s.warnKept()
	}
	if flags&wire.FinishKeep != 0 {
		s.warnFiles()
	}
	if h.work == nil {
		_ = h.d.Finish(nil) // a result: only the client holds it
		return nil
	}
	var err error
	handled := flags&wire.FinishHandled != 0
	switch {
	case code == wire.OK:
	case deadlineTooEarly(h.d.Control().Stream().Request, code):
		handled = false // the client waits to be told of the end, as after an error
	default:
		err = errors.New(text)
	}
	h.work.Finished(err, handled)
	return nil
}

// deadlineTooEarly reports whether the client ended a request at a deadline that has not passed by the
// host's clock. The request then ends at its deadline by the host's clock.
func deadlineTooEarly(r *bus.Request, code wire.Code) bool {
	return code == wire.CodeOver && r.Control().EndsAtDeadline()
}

// releaseKept releases a payload that the client kept after its delivery.
func (s *session) releaseKept(id uint32) error {
	if !s.account.Release(id) {
		return fmt.Errorf("%w: the payload of delivery %d was not kept, or was released before", wire.ErrProtocol, id)
	}
	return nil
}

// EndTask asks the client for the end of a task: its last outputs, then the answer. It is called with
// the stage's lock held.
func (src *source) EndTask() { src.sess.queueFor(src.req, &wire.End{Task: src.id}) }

// taskEnded handles the client's answer to EndTask, after the emissions before it.
func (s *session) taskEnded(m *wire.Ended) error {
	src, err := s.source(m.Task)
	if src == nil || err != nil {
		return err
	}
	if src.task == nil || (m.Code == wire.OK && !src.task.MayEnd()) {
		return fmt.Errorf("%w: task %d was not asked to end", wire.ErrProtocol, m.Task)
	}
	if deadlineTooEarly(src.req, m.Code) {
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

// TaskOver tells the client to stop, unless the client has ended the task itself and said so. It is
// called with the stage's lock held.
func (src *source) TaskOver(known bool) {
	if !known {
		o := src.req.Outcome()
		if o == bus.Running { // the rest of the request goes on, and this task is complete
			o = bus.Completed
		}
		src.sess.queueFor(src.req, hostnode.Over(src.id, o, src.req.Err()))
	}
	src.sess.dropSource(src.id)
}

// sentDelivery is a delivery that the client holds.
type sentDelivery struct {
	hold accounts.Hold
	d    *bus.Delivery
	work *bus.Work // the work that it is part of; nil: a result
}

// Hold implements accounts.Delivery.
func (h *sentDelivery) Hold() accounts.Held { return h.d.Control().Hold() }
