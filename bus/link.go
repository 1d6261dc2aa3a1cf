package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// link is a node's connection to its host, for one life of the host. Its
// reader goroutine hands messages to whom they are for.
type link struct {
	node      *Node
	conn      *peer.Conn
	in        *peer.Receiver
	sender    *peer.Sender
	welcome   wire.Welcome
	caller    *Bus           // carries what this process submits
	busy      sync.WaitGroup // tasks
	drained   chan struct{}  // the host is going to stop
	drainOnce sync.Once
	done      chan struct{} // the connection has ended
	err       error         // why; set before done is closed

	tokens atomic.Uint32
	puts   atomic.Uint32

	mu        sync.Mutex
	questions map[uint32]*question
	segments  map[uint32]*segment // the host has told us of
	offers    map[*segment]uint32 // we have told the host of
	lastOffer uint32
	out       map[uint32]outgoing // puts that have not been returned
	tasks     map[uint32]*nodeTask
	requests  map[uint32]*upstream
	stages    []*nodeStage
	closing   error // why this side ended it
}

// dialLink connects and introduces this process.
func dialLink(ctx context.Context, path, bus, name string) (*link, error) {
	conn, err := peer.Dial(ctx, path)
	if err != nil {
		return nil, err
	}
	l := &link{
		conn: conn, in: peer.NewReceiver(conn), drained: make(chan struct{}), done: make(chan struct{}), questions: make(map[uint32]*question),
		segments: make(map[uint32]*segment), offers: make(map[*segment]uint32), out: make(map[uint32]outgoing),
		tasks: make(map[uint32]*nodeTask), requests: make(map[uint32]*upstream),
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := l.introduce(bus, name); err != nil {
		_ = conn.Close()
		return nil, errors.Join(err, context.Cause(ctx))
	}
	return l, nil
}

func (l *link) introduce(bus, name string) error {
	hello := &wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.Version, PID: uint32(os.Getpid()), Bus: bus, Name: name}
	p, err := wire.Append(nil, wire.Version, hello, 0)
	if err != nil {
		return err
	}
	if err := l.conn.Send(p, nil); err != nil {
		return err
	}
	h, body, fds, err := l.in.Next()
	closeAll(fds)
	if err != nil {
		return fmt.Errorf("the host hung up before it answered: %w", err)
	}
	m, err := wire.Parse(h, body, wire.Version)
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *wire.Welcome:
		l.welcome = *m
	case *wire.Refuse:
		return &wire.Error{Code: m.Code, Text: m.Text}
	default:
		return fmt.Errorf("%w: %v instead of welcome", wire.ErrProtocol, m.Kind())
	}
	if l.welcome.Version < wire.VersionMin || l.welcome.Version > wire.Version {
		return fmt.Errorf("%w: the host chose version %d", wire.ErrProtocol, l.welcome.Version)
	}
	l.sender, err = peer.NewSender(l.conn, peer.SenderOptions{Version: l.welcome.Version})
	return err
}

// run reads until the connection ends.
func (l *link) run() {
	err := l.read()
	if errors.Is(err, io.EOF) {
		err = errors.New("the host is gone")
	}
	l.mu.Lock()
	if l.closing != nil {
		err = l.closing
	}
	l.err = fmt.Errorf("%w: %w", ErrHostGone, err)
	questions, tasks, requests, out := l.questions, l.tasks, l.requests, l.out
	l.questions, l.tasks, l.requests, l.out = nil, nil, nil, nil
	l.mu.Unlock()
	_ = l.conn.Close()
	_ = l.sender.Close()
	close(l.done)
	for _, q := range questions {
		close(q.answers)
	}
	for _, t := range tasks {
		t.hostGone(l.err)
	}
	for _, u := range requests {
		u.hostGone(l.err)
	}
	for _, o := range out {
		o.returned()
	}
	l.dropSegments()
}

// dropSegments lets go of what the host has told us of. What is in use stays
// mapped until it is released.
func (l *link) dropSegments() {
	l.mu.Lock()
	segments := l.segments
	l.segments = nil
	l.mu.Unlock()
	for _, seg := range segments {
		seg.release()
	}
}

func (l *link) read() error {
	defer l.in.Close()
	for {
		h, body, fds, err := l.in.Next()
		if err != nil {
			return err
		}
		m, err := wire.Parse(h, body, l.welcome.Version)
		if err != nil {
			closeAll(fds)
			return err
		}
		if err := l.handle(m, fds); err != nil {
			return err
		}
	}
}

// handle handles one message. It owns the descriptors.
func (l *link) handle(m wire.Message, fds []int) error {
	if seg, ok := m.(*wire.Segment); ok {
		return l.learn(seg, fds)
	}
	closeAll(fds)
	switch m := m.(type) {
	case *wire.Deliver:
		return l.deliver(m)
	case *wire.Returned:
		for _, id := range m.Puts {
			l.returned(id)
		}
	case *wire.Spent:
		l.spent(m)
	case *wire.Open:
		return l.open(m)
	case *wire.End:
		if t := l.task(m.Task); t != nil {
			t.end()
		}
	case *wire.Over:
		l.over(m)
	case *wire.Forget:
		l.forget(m.Segment)
	case *wire.Failed:
		l.answer(m.Token, m)
	case *wire.Serving:
		l.answer(m.Token, m)
	case *wire.Submitted:
		l.answer(m.Token, m)
	case *wire.Emitted:
		l.answer(m.Token, m)
	case *wire.Reply:
		l.answer(m.Token, m)
	case *wire.Drain:
		l.drainOnce.Do(func() { close(l.drained) })
	case *wire.Refuse:
		return &wire.Error{Code: m.Code, Text: m.Text}
	case *wire.Bye:
		return io.EOF
	default:
		return fmt.Errorf("%w: %v was not asked for", wire.ErrProtocol, m.Kind())
	}
	return nil
}

// learn maps a segment.
func (l *link) learn(m *wire.Segment, fds []int) error {
	mem, err := shmstore.OpenSegment("host", fds[0], int64(m.Bytes))
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.segments[m.Segment] != nil {
		mem.Close()
		return fmt.Errorf("%w: segment %d came twice", wire.ErrProtocol, m.Segment)
	}
	l.segments[m.Segment] = newSegment(mem)
	return nil
}

func (l *link) forget(number uint32) {
	l.mu.Lock()
	seg := l.segments[number]
	delete(l.segments, number)
	l.mu.Unlock()
	if seg != nil {
		seg.release()
	}
}

// question is one that waits for its answer.
type question struct {
	answers chan wire.Message
	// first, on the reader's goroutine, sees the answer before anything that
	// comes behind it; nil: it need not.
	first func(wire.Message) error
}

// ask sends a question and waits for its answer.
func (l *link) ask(ctx context.Context, make func(token uint32) wire.Message, first func(wire.Message) error) (wire.Message, error) {
	token, q, err := l.note(1, first)
	if err != nil {
		return nil, err
	}
	defer l.settle(token)
	if err := l.sender.Queue(make(token)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHostGone, err)
	}
	return l.await(ctx, q)
}

// note remembers a question with room for some answers.
func (l *link) note(answers int, first func(wire.Message) error) (uint32, *question, error) {
	token := l.tokens.Add(1)
	q := &question{answers: make(chan wire.Message, answers), first: first}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.questions == nil {
		return 0, nil, l.err
	}
	l.questions[token] = q
	return token, q, nil
}

func (l *link) settle(token uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.questions, token)
}

func (l *link) await(ctx context.Context, q *question) (wire.Message, error) {
	select {
	case m, ok := <-q.answers:
		if !ok {
			return nil, l.err
		}
		switch m := m.(type) {
		case *wire.Failed:
			return nil, errorOf(m)
		case failedFirst:
			return nil, m.err
		}
		return m, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// failedFirst is an answer that was of no use.
type failedFirst struct {
	wire.Message
	err error
}

// errorOf gives the error that a code stands for.
func errorOf(f *wire.Failed) error {
	for _, c := range codes {
		if c.code == f.Code {
			return fmt.Errorf("%w: %w", c.err, &wire.Error{Code: f.Code, Text: f.Text})
		}
	}
	return &wire.Error{Code: f.Code, Text: f.Text}
}

func (l *link) answer(token uint32, m wire.Message) {
	if r, ok := m.(*wire.Reply); ok {
		m = &wire.Reply{Token: r.Token, Flags: r.Flags, Piece: append([]byte(nil), r.Piece...)}
	}
	l.mu.Lock()
	q := l.questions[token]
	l.mu.Unlock()
	_, failed := m.(*wire.Failed)
	switch {
	case q == nil: // nobody waits any more
		if s, ok := m.(*wire.Submitted); ok {
			l.queue(&wire.Close{Source: s.Source})
		}
		return
	case q.first != nil && !failed:
		if err := q.first(m); err != nil {
			m = failedFirst{m, err}
		}
	}
	select {
	case q.answers <- m:
	default: // more pieces than anybody asks for
	}
}

// call asks about the bus.
func (l *link) call(ctx context.Context, method string, arguments []byte) ([]byte, error) {
	token, q, err := l.note(maxReplyPieces, nil)
	if err != nil {
		return nil, err
	}
	defer l.settle(token)
	if err := l.sender.Queue(&wire.Call{Token: token, Method: method, Arguments: arguments}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHostGone, err)
	}
	var all []byte
	for {
		m, err := l.await(ctx, q)
		if err != nil {
			return nil, err
		}
		r, ok := m.(*wire.Reply)
		if !ok {
			return nil, fmt.Errorf("%w: %v instead of a reply", wire.ErrProtocol, m.Kind())
		}
		all = append(all, r.Piece...)
		if r.Flags&wire.ReplyMore == 0 {
			return all, nil
		}
	}
}

// maxReplyPieces bounds the answer to a call, at 60,000 bytes each.
const maxReplyPieces = 1024

// fed is what a delivery that came from the host owes it.
type fed struct {
	link *link
	id   uint32
	err  error
	done bool
}

func (f *fed) number() uint32 {
	if f == nil {
		return 0
	}
	return f.id
}

// fail notes why the delivery could not be handled. It is for whoever handles it.
func (f *fed) fail(err error) {
	if f != nil && f.err == nil {
		f.err = err
	}
}

// finish tells the host that the work on d is done. A payload that was sent on
// by reference stays with this process until that is returned.
func (f *fed) finish(d *Delivery) {
	if f == nil || f.done {
		return
	}
	f.tell(d.foreign, d.foreign != nil && d.foreign.refs.Load() > 1)
}

// retain tells the host that d was handled, and that its payload stays here
// for a replay.
func (f *fed) retain(d *Delivery) {
	if f != nil && !f.done {
		f.tell(d.foreign, d.foreign != nil)
	}
}

// tell sends the finish of a delivery. A payload that stays is released when
// the last of its references here is.
func (f *fed) tell(p *foreign, stays bool) {
	f.done = true
	m := &wire.Finish{Delivery: f.id}
	if f.err != nil {
		m.Code, m.Text = wire.CodeInternal, f.err.Error()
	}
	if stays {
		m.Flags |= wire.FinishKeep
		id, l := f.id, f.link
		p.free = func() { l.queue(&wire.Release{Delivery: id}) }
	}
	f.link.queue(m)
}

// receive makes a delivery of a message.
func (l *link) receive(m *wire.Deliver) (*Delivery, error) {
	d := newDelivery()
	d.Seq, d.Dropped, d.Attempt, d.Key, d.Attrs = m.Seq, m.Dropped, m.Attempt, m.Key, m.Attrs
	d.EOS = m.Flags&wire.FlagLast != 0
	d.Codec = m.Codec
	d.fed = &fed{link: l, id: m.Delivery}
	if m.Flags&wire.FlagInline != 0 {
		if len(m.Payload) <= smallBytes {
			d.Inline = d.small[:copy(d.small[:], m.Payload):len(m.Payload)]
		} else {
			d.Inline = append([]byte{}, m.Payload...)
		}
		return d, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seg := l.segments[m.Segment]
	if seg == nil {
		return nil, fmt.Errorf("%w: delivery %d lies in segment %d, which is not known", wire.ErrProtocol, m.Delivery, m.Segment)
	}
	if size := uint64(seg.mem.Size()); m.Offset > size || m.Size > size-m.Offset {
		return nil, fmt.Errorf("%w: delivery %d has %d bytes at %d of a segment of %d", wire.ErrProtocol, m.Delivery, m.Size, m.Offset, size)
	}
	d.foreign = seg.payload(int64(m.Offset), int(m.Size), func() {})
	d.foreign.delivery = m.Delivery
	d.Inline = d.foreign.data
	return d, nil
}

// put sends the payload of d for a source of the host's. When it is returned,
// nobody needs it any more.
func (l *link) put(source uint32, d *Delivery, edge int, returned func()) error {
	m := &wire.Put{
		Put: l.puts.Add(1), Source: source, Delivery: d.cause, Edge: uint16(edge), Codec: uint32(d.PayloadCodec()),
		Attempt: d.Attempt, Size: uint64(len(d.Bytes())), Key: d.Key, Attrs: d.Attrs,
	}
	if d.EOS {
		m.Flags |= wire.FlagLast
	}
	var seg *segment
	switch p := d.Bytes(); {
	case len(p) <= int(l.welcome.InlineBytes):
		m.Flags |= wire.FlagInline
		m.Payload = p
	case d.foreign != nil && d.foreign.delivery != 0:
		m.Flags |= wire.FlagForward
		m.Delivery = d.foreign.delivery
	case !d.Handle.IsZero():
		seg, m.Offset = d.flow.req.bus.shared, d.Handle.Offset
	default: // the store had no room in one piece
		own, err := ownSegment(p)
		if err != nil {
			return fmt.Errorf("payload of %d bytes: %w", len(p), err)
		}
		m.Flags |= wire.FlagOwn
		seg = own.seg
		defer own.release() // the host has it mapped, or will not
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.out == nil {
		return l.err
	}
	l.out[m.Put] = outgoing{d, returned}
	if seg != nil {
		if err := l.offer(seg, m); err != nil {
			delete(l.out, m.Put)
			return err
		}
	}
	if err := l.sender.Queue(m); err != nil {
		delete(l.out, m.Put)
		return fmt.Errorf("%w: %w", ErrHostGone, err)
	}
	return nil
}

// offer, with mu held, tells the host of the segment of a put.
func (l *link) offer(seg *segment, m *wire.Put) error {
	number, known := l.offers[seg]
	if !known {
		l.lastOffer++
		number = l.lastOffer
		if m.Flags&wire.FlagOwn == 0 {
			l.offers[seg] = number
		}
		if err := l.sender.Queue(&wire.Offer{Segment: number, Bytes: uint64(seg.mem.Size())}, seg.mem.FD()); err != nil {
			return fmt.Errorf("%w: %w", ErrHostGone, err)
		}
	}
	m.Segment = number
	return nil
}

// outgoing is a put that the host has not returned.
type outgoing struct {
	d        *Delivery
	returned func()
}

func (l *link) returned(id uint32) {
	l.mu.Lock()
	o, ok := l.out[id]
	delete(l.out, id)
	l.mu.Unlock()
	if ok {
		o.returned()
	}
}

// spent gives credit back for a payload that the host still needs.
func (l *link) spent(m *wire.Spent) {
	l.mu.Lock()
	o, ok := l.out[m.Put]
	var back uint64
	if ok { // not finished, so that nobody else looks at its credit
		if o.d.credit >= oneDelivery {
			back = oneDelivery
		}
		if m.Flags&wire.SpentBytes != 0 {
			back += o.d.credit & bytesMask
		}
		o.d.credit -= back
	}
	l.mu.Unlock()
	if back != 0 {
		o.d.flow.give(back)
	}
}

func (l *link) task(id uint32) *nodeTask {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tasks[id]
}

// deliver hands a delivery to its task, or a result to its request.
func (l *link) deliver(m *wire.Deliver) error {
	d, err := l.receive(m)
	if err != nil {
		return err
	}
	l.mu.Lock()
	t, u := l.tasks[m.Source], l.requests[m.Source]
	l.mu.Unlock()
	switch {
	case t != nil:
		return t.feed(d, m)
	case u != nil:
		return u.result(d, m)
	}
	d.discard() // its request is over, which the host learns
	return nil
}

func (l *link) over(m *wire.Over) {
	l.mu.Lock()
	t, u := l.tasks[m.Source], l.requests[m.Source]
	delete(l.tasks, m.Source)
	delete(l.requests, m.Source)
	l.mu.Unlock()
	outcome, err := outcomeOf(m)
	switch {
	case t != nil:
		t.over(outcome, err)
	case u != nil:
		u.over(outcome, err)
	}
}

// outcomeOf makes the end of a request what it was at the host.
func outcomeOf(m *wire.Over) (Outcome, error) {
	switch o := Outcome(m.Outcome); {
	case o == Completed:
		return o, nil
	case o == Aborted:
		return o, fmt.Errorf("%w at the host: %s", ErrAborted, m.Text)
	case o == PastDeadline:
		return o, fmt.Errorf("%w: %s", ErrDeadline, m.Text)
	case m.Stage == "" && m.Edge == "":
		return Failed, errors.New(m.Text)
	}
	return Failed, &StageError{Stage: m.Stage, Edge: m.Edge, Key: m.Key, Seq: m.Seq, Err: errors.New(m.Text)}
}

// served is a snapshot of the stages that are served here.
func (l *link) served() []*nodeStage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.stages)
}

func traceOf(t wire.Trace) messages.TraceContext {
	return messages.TraceContext{TraceID: t.TraceID, SpanID: t.SpanID, Flags: t.Flags, State: t.State}
}
