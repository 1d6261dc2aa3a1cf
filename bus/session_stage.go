package bus

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
)

// maxServed bounds how often a client may say that it serves a stage: each time it
// is one more replica, which all who route to the stage look at.
const maxServed = 1024

// serve makes the client a replica of a stage.
func (s *session) serve(m *wire.Serve) error {
	b := s.srv.bus
	st := b.graph.byName[m.Stage]
	refuse := func(code wire.Code, format string, args ...any) error {
		s.queue(&wire.Failed{Token: m.Token, Code: code, Text: fmt.Sprintf(format, args...)})
		return nil
	}
	s.mu.Lock()
	served := len(s.replicas)
	s.mu.Unlock()
	switch {
	case st == nil:
		return refuse(wire.CodeUnknown, "the bus %q has no stage %q: its stages are %s", b.opts.Name, m.Stage, b.graph.names())
	case st.remote == nil:
		return refuse(wire.CodeTaken, "the stage %q runs inside the host", m.Stage)
	case served >= maxServed:
		return refuse(wire.CodeOverloaded, "this client serves stages as %d replicas, and may be no more", served)
	}
	from := 0
	if f := s.srv.opts.Number; f != nil {
		from = max(f(st.spec.Name, s.proc.PID()), 0)
	}
	rep := st.remote.attach(s, from, m.Flags&wire.ServeEnds != 0)
	s.mu.Lock()
	s.replicas = append(s.replicas, rep)
	number := len(s.replicas) - 1
	s.mu.Unlock()
	state := wire.StateRequest
	if st.spec.State == StateNone {
		state = wire.StateNone
	}
	s.queue(&wire.Serving{
		Token: m.Token, Stage: uint32(number), Replica: uint32(rep.number),
		// All of the stage's tasks may come to be here, when other replicas die.
		MaxInflight: uint32(st.spec.MaxInflight * st.spec.Replicas), State: state, Join: st.spec.Remote.Join, Batch: uint32(st.spec.Remote.Batch),
		Inputs: wireEdges(st.in, false), Outputs: wireEdges(st.out, true), Tensors: wireTensors(st.out),
	})
	if f := s.srv.opts.OnServe; f != nil {
		f(st.spec.Name, rep.number, s.proc.PID())
	}
	st.remote.begin(rep)
	return nil
}

// leave lets the client have no more tasks of stages that it serves; without numbers of
// any.
func (s *session) leave(stages ...uint32) error {
	s.mu.Lock()
	replicas := slices.Clone(s.replicas)
	s.mu.Unlock()
	left := make([]*replica, 0, len(replicas))
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
		rep.remote.retire(rep)
	}
	return nil
}

// openTask announces a task. It is called with the stage's lock held.
func (s *session) openTask(p *posting) {
	t := p.rt.task
	p.source = &source{emitter: Emitter{out: &t.outlet}, edges: t.outlet.edges, posting: p}
	_ = s.newSource(p.source) // one that is gone is told for nothing
	s.mu.Lock()
	stage := slices.Index(s.replicas, p.replica)
	s.mu.Unlock()
	req := t.outlet.req
	s.later(&wire.Open{ // a delivery follows, or the end
		Task: p.source.id, Stage: uint32(stage), Request: uint64(req.id), Attempt: uint32(p.rt.attempt),
		Deadline: req.deadline, Trace: wireTrace(req.trace),
	})
}

func wireTrace(t messages.TraceContext) wire.Trace {
	return wire.Trace{TraceID: t.TraceID, SpanID: t.SpanID, Flags: t.Flags, State: t.State}
}

// deliverWork hands a work to the client, or nothing of it after an error. It is
// called with the stage's lock held.
func (s *session) deliverWork(p *posting, w *work) error {
	w.ids = w.id[:0]
	at, err := s.locateAll(w.parts)
	if err != nil {
		return err
	}
	for i, d := range w.parts {
		edge := slices.Index(d.flow.consumer.stage.in, d.flow.edge)
		w.ids = append(w.ids, s.deliver(p.source, d, w, edge, at[i], i < len(w.parts)-1))
	}
	w.adrift = !slices.ContainsFunc(w.ids, func(id uint32) bool { return id != 0 })
	return nil
}

// deliver sends a delivery to the client.
func (s *session) deliver(src *source, d *Delivery, w *work, edge int, at location, more bool) uint32 {
	m := wire.Deliver{
		Source: src.id, Edge: uint16(edge), Codec: uint32(d.PayloadCodec()), Attempt: d.Attempt,
		Seq: d.Seq, Dropped: d.Dropped, Size: uint64(len(d.Bytes())), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	if more {
		m.Flags |= wire.FlagMore
	}
	direct := s.directFrom(src, d, edge)
	h := &held{d: d, work: w, at: time.Now()}
	if at.seg == nil {
		m.Flags |= wire.FlagInline
		m.Payload = d.Bytes()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	defer at.release() // by then it is the client's
	if s.gone {        // detach finds the work without a number
		return 0
	}
	if at.seg != nil {
		h.told = s.tell(at.seg)
		m.Segment, m.Offset = h.told.number, at.offset
	}
	s.lastDelivery++
	m.Delivery = s.lastDelivery
	s.held[m.Delivery] = h
	s.said.deliver = m // which costs no memory
	s.queueFor(d.flow.req, &s.said.deliver)
	s.said.deliver = wire.Deliver{}
	if direct != nil {
		s.expects[src.id] = append(s.expects[src.id], direct)
		s.queue(&wire.Expect{Source: src.id, Edge: uint16(edge), Peer: direct.producer.sess.node})
	}
	return m.Delivery
}

// tell, with mu held, gives the client a segment unless it has it, and counts
// one more payload there.
func (s *session) tell(seg *segment) *told {
	t := s.told[seg]
	if t == nil {
		seg.retain()
		s.lastSegment++
		t = &told{seg: seg, number: s.lastSegment, lasting: seg.lasting.Load()}
		s.told[seg] = t
		s.queue(&wire.Segment{Segment: t.number, Bytes: uint64(seg.mem.Size())}, seg.mem.FD())
	}
	t.uses++
	return t
}

// untell, with mu held, counts one payload less.
func (s *session) untell(t *told) {
	if t == nil {
		return
	}
	if t.uses--; t.uses == 0 && !t.lasting {
		delete(s.told, t.seg)
		s.queue(&wire.Forget{Segment: t.number})
		t.seg.release()
	}
}

// retireSegment notes that nothing new will lie in a segment.
func (s *session) retireSegment(seg *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.told[seg]; t != nil {
		t.lasting = false
		t.uses++
		s.untell(t)
	}
}

// finish ends the work on a delivery, behind what was emitted before.
func (s *session) finish(m *wire.Finish) error {
	if found, err := s.finishFetched(m); found {
		return err
	}
	s.mu.Lock()
	h := s.held[m.Delivery]
	again := h != nil && h.finishing
	if h != nil {
		h.finishing = true
	}
	s.mu.Unlock()
	if h == nil || again {
		return fmt.Errorf("%w: delivery %d is not the client's to finish", wire.ErrProtocol, m.Delivery)
	}
	var err error
	if m.Code != 0 {
		err = errors.New(m.Text)
	}
	keep := m.Flags&wire.FinishKeep != 0
	if h.work == nil {
		return s.finishHeld(m.Delivery, keep, err)
	}
	return s.behind(h.work.rt, func() error { return s.finishHeld(m.Delivery, keep, err) })
}

// finishHeld finishes a delivery that the client has.
func (s *session) finishHeld(id uint32, keep bool, err error) error {
	s.mu.Lock()
	h := s.held[id]
	if h == nil {
		s.mu.Unlock()
		return fmt.Errorf("%w: delivery %d was finished before", wire.ErrProtocol, id)
	}
	delete(s.held, id)
	fills := false
	if keep && !h.released {
		s.kept[id] = s.keep(h)
		fills = h.told.fills() && !s.keptSaid
	} else {
		s.untell(h.told)
	}
	s.mu.Unlock()
	if fills {
		s.warnKept()
	}
	if h.work == nil {
		_ = h.d.Finish(nil) // in the client's hands alone until now
		return nil
	}
	h.work.rt.task.stage.remote.finished(h.work, err)
	return nil
}

// lent is told that the client passes the payload of a delivery on by reference.
func (s *session) lent(id uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[id]; h != nil {
		h.lent = true
	} else if k := s.kept[id]; k != nil {
		k.lent = true
	} else {
		return fmt.Errorf("%w: delivery %d is not the client's to pass on", wire.ErrProtocol, id)
	}
	return nil
}

// releaseKept gives back a payload that outlived its delivery.
func (s *session) releaseKept(id uint32) error {
	s.mu.Lock()
	k := s.kept[id]
	delete(s.kept, id)
	if k != nil {
		k.unkept()
		s.untell(k.told)
	} else if h := s.held[id]; h != nil && h.finishing {
		h.released = true // its finish waits behind what was emitted before
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	if k == nil {
		return fmt.Errorf("%w: the payload of delivery %d was not kept, or was released before", wire.ErrProtocol, id)
	}
	k.payload.release()
	return nil
}

// endTask asks for what is left of a task. It is called with the stage's lock
// held.
func (s *session) endTask(p *posting) {
	s.queueFor(p.rt.task.outlet.req, &wire.End{Task: p.source.id})
}

// ended handles the answer to it, behind what was emitted before.
func (s *session) ended(m *wire.Ended) error {
	src, err := s.source(m.Task)
	if src == nil || err != nil {
		return err
	}
	if src.posting == nil || (m.Code == wire.OK && !src.posting.asked()) {
		return fmt.Errorf("%w: task %d was not asked to end", wire.ErrProtocol, m.Task)
	}
	var failure error
	if m.Code != wire.OK {
		failure = errors.New(m.Text)
		if m.Edge != "" {
			failure = &StageError{Stage: src.posting.replica.remote.stage.spec.Name, Edge: m.Edge, Key: m.Key, Seq: m.Seq, Err: failure}
		}
	}
	return src.do(orWaive(func() error {
		s.dropSource(src.id)
		return src.posting.replica.remote.answered(src.posting, failure)
	}))
}

func (p *posting) asked() bool {
	r := p.replica.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	return p.ending || p.unasked()
}

// taskOver tells the client to stop. It is called with the stage's lock held.
func (s *session) taskOver(p *posting) {
	req := p.rt.task.outlet.req
	s.queueFor(req, overMessage(p.source.id, req.Outcome(), req.Err()))
	s.dropSource(p.source.id)
}

// overMessage says how a request ended.
func overMessage(source uint32, outcome Outcome, err error) *wire.Over {
	m := &wire.Over{Source: source, Outcome: wire.Outcome(outcome)}
	if err == nil {
		return m
	}
	var at *StageError
	if errors.As(err, &at) {
		m.Stage, m.Edge, m.Key, m.Seq, m.Text = at.Stage, at.Edge, at.Key, at.Seq, at.textBeside(err)
	} else {
		m.Text = err.Error()
	}
	return m
}
