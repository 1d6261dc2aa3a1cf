package bus

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// source is what a client emits for: a task of one of its stages, or a request
// that it submitted. What it sends is done in order.
type source struct {
	sess    *session
	id      uint32
	emitter Emitter
	posting *posting // nil: a request
	req     *Request // nil: a task

	mu    sync.Mutex
	queue []step // behind what is being done
	busy  bool
}

// step is one thing to be done for a source. Unless it may wait, it gives
// errCanceled back, with nothing done, when it would have to. Any other error
// ends the session.
type step func(mayWait bool) error

func (s *session) newSource(e Emitter) *source {
	src := &source{sess: s, id: s.srv.sources.Add(1), emitter: e}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gone {
		s.sources[src.id] = src
	}
	return src
}

// source finds a source. It is nil for one that is over, which the client
// need not know yet, and an error for one that never was.
func (s *session) source(id uint32) (*source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	src := s.sources[id]
	if src == nil && (id == 0 || id > s.srv.sources.Load()) {
		return nil, fmt.Errorf("%w: there is no source %d", wire.ErrProtocol, id)
	}
	return src, nil
}

func (s *session) dropSource(id uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sources, id)
}

// maxQueued bounds what a client may send for one source ahead of what the
// windows let through.
const maxQueued = 4096

// do does something behind all that was asked for before: now, if nothing is
// and it need not wait. It is for the reader's goroutine.
func (src *source) do(f step) error {
	src.mu.Lock()
	if src.busy {
		defer src.mu.Unlock()
		if len(src.queue) >= maxQueued {
			return fmt.Errorf("%w: more than %d messages wait for source %d: wait for answers", wire.ErrProtocol, maxQueued, src.id)
		}
		src.queue = append(src.queue, f)
		return nil
	}
	src.mu.Unlock()
	err := f(false)
	if !errors.Is(err, errCanceled) {
		return err
	}
	src.mu.Lock()
	src.busy = true
	src.mu.Unlock()
	src.sess.wg.Go(func() { src.work(f) })
	return nil
}

// work does what had to wait, and what came behind it.
func (src *source) work(f step) {
	for f != nil {
		if err := f(true); err != nil {
			src.sess.fail(err)
		}
		f = src.next()
	}
}

func (src *source) next() (f step) {
	src.mu.Lock()
	defer src.mu.Unlock()
	if len(src.queue) == 0 {
		src.busy = false
		return nil
	}
	f = src.queue[0]
	src.queue[0] = nil
	src.queue = src.queue[1:]
	return f
}

// behind does something for a task, in the order of its source.
func (s *session) behind(rt *remoteTask, f func() error) error {
	if src := s.sourceOf(rt); src != nil {
		return src.do(func(bool) error { return f() })
	}
	return f()
}

func (s *session) sourceOf(rt *remoteTask) *source {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, src := range s.sources {
		if src.posting != nil && src.posting.rt == rt {
			return src
		}
	}
	return nil
}

// emission makes a client's words an emission.
func (src *source) emission(edge uint16, flags uint8, key string, attrs map[string]string) (emission, error) {
	em := emission{key: key, attrs: attrs, last: flags&wire.FlagLast != 0}
	if edge == wire.AllEdges {
		return em, nil
	}
	if int(edge) >= len(src.emitter.out.edges) {
		return em, fmt.Errorf("%w: source %d has %d edges, none has the index %d", ErrNoEdge, src.id, len(src.emitter.out.edges), edge)
	}
	em.only = int(edge) + 1
	return em, nil
}

// repeated counts an emission of the client, and reports whether an earlier
// handling of the same input made it.
func (s *session) repeated(src *source, delivery uint32) bool {
	if src.posting == nil {
		return false
	}
	s.mu.Lock()
	h := s.held[delivery]
	s.mu.Unlock()
	r := src.posting.replica.remote
	r.mu.Lock()
	defer r.mu.Unlock()
	if h != nil && h.work != nil && r.stage.spec.State == StateNone {
		return h.work.output.repeat()
	}
	return src.posting.rt.output.repeat()
}

// once makes one emission a step, and then tells what became of it.
func (src *source) once(emit func(Emitter) error, then func(error)) step {
	return func(mayWait bool) error {
		e := src.emitter
		if !mayWait {
			e.cancel = atOnce
		}
		err := emit(e)
		switch {
		case !errors.Is(err, errCanceled):
			then(err)
		case !mayWait:
			return err
		default: // the session ends, and nobody hears it
			then(ErrEnded)
		}
		return nil
	}
}

// emit sends a payload that came in the message.
func (s *session) emit(m *wire.Emit) error {
	src, err := s.source(m.Source)
	if err != nil {
		return err
	}
	answer := func(token uint32, err error) {
		if err != nil {
			s.queue(failedMessage(token, err))
			return
		}
		s.queue(&wire.Emitted{Token: token})
	}
	if src == nil {
		answer(m.Token, ErrEnded)
		return nil
	}
	em, err := src.emission(m.Edge, m.Flags, m.Key, m.Attrs)
	if err != nil {
		answer(m.Token, err)
		return nil
	}
	forward, err := s.forwarding(m.Flags, m.Delivery)
	if err != nil {
		return err
	}
	payload, token, delivery, c := append([]byte(nil), m.Payload...), m.Token, m.Delivery, codec.ID(m.Codec)
	counted, repeat := false, false
	return src.do(src.once(func(e Emitter) error {
		if !counted {
			counted, repeat = true, s.repeated(src, delivery)
		}
		switch {
		case repeat:
			return nil
		case forward != nil:
			return forward(e, em)
		}
		return e.copied(payload, c, em)
	}, func(err error) {
		answer(token, err)
	}))
}

// forwarding finds the payload that a message passes on by reference; nil: it
// has its own.
func (s *session) forwarding(flags uint8, delivery uint32) (func(Emitter, emission) error, error) {
	if flags&wire.FlagForward == 0 {
		return nil, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[delivery]; h != nil {
		return func(e Emitter, em emission) error { return e.forward(h.d, em) }, nil
	}
	if k := s.kept[delivery]; k != nil {
		return func(e Emitter, em emission) error { return e.pass(k.payload, em) }, nil
	}
	return nil, fmt.Errorf("%w: delivery %d is not the client's to forward", wire.ErrProtocol, delivery)
}

// clientArena is the memory that a client fills with its payloads. The host
// keeps its books.
type clientArena struct {
	seg    *segment
	number uint32
	rooms  *shmstore.Arena
	sealed bool
}

// makeArena answers arena.
func (s *session) makeArena(m *wire.Arena) error {
	size := int64(m.Bytes)
	if size == 0 {
		size = s.arenaBytes()
	}
	if size <= 0 || size > maxArenaBytes {
		return fmt.Errorf("%w: an arena of %d bytes: ask for 1 to %d, or for 0", ErrPayload, size, maxArenaBytes)
	}
	s.mu.Lock()
	has := s.arena != nil
	s.mu.Unlock()
	if has {
		return fmt.Errorf("%w: the client has an arena already", ErrPayload)
	}
	mem, err := shmstore.CreateSegment("arena", size)
	if err != nil {
		return err
	}
	rooms, err := shmstore.NewArena(mem.Bytes(), shmstore.ArenaOptions{Name: s.describe()})
	if err != nil {
		mem.Close()
		return err
	}
	seg := newSegment(mem)
	seg.lasting.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arena != nil {
		seg.release()
		return fmt.Errorf("%w: the client has an arena already", ErrPayload)
	}
	s.lastSegment++
	s.arena = &clientArena{seg: seg, number: s.lastSegment, rooms: rooms}
	s.queue(&wire.ArenaAt{Token: m.Token, Segment: s.arena.number, Bytes: uint64(size)}, mem.FD())
	return nil
}

// maxArenaBytes bounds what a client may ask for. What the machine has free
// bounds it first.
const maxArenaBytes = 1 << 40

// arenaBytes is as much as the client's windows can need, and a third more for
// what lies between payloads.
func (s *session) arenaBytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var need int64
	for _, rep := range s.replicas {
		for _, e := range rep.remote.stage.out {
			need += e.windowBytes * int64(rep.remote.stage.spec.MaxInflight*rep.remote.stage.spec.Replicas)
		}
	}
	if need == 0 { // one that submits
		for _, e := range s.srv.bus.graph.inputs {
			need += e.windowBytes * int64(s.srv.bus.opts.MaxRequests)
		}
	}
	const page = 4096
	return (need + need/3 + page - 1) &^ (page - 1)
}

// sealed notes that nobody but the client can write to its arena from here on.
func (s *session) sealed(number uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arena == nil || s.arena.number != number {
		return nil // a segment of its own: send looks at its seals
	}
	if err := s.arena.seg.mem.Sealed(); err != nil {
		return err
	}
	s.arena.sealed = true
	return nil
}

// grant is room that a client fills.
type grant struct {
	src      *source
	buf      Buffer
	payload  *foreign
	delivery uint32
	own      bool // in a segment of its own
}

func (g *grant) abort() {
	g.buf.giveCredit()
	g.payload.release()
}

// reserve answers reserve: it takes credit, then room.
func (s *session) reserve(m *wire.Reserve) error {
	src, err := s.source(m.Source)
	if err != nil {
		return err
	}
	if src == nil {
		s.queue(failedMessage(m.Token, ErrEnded))
		return nil
	}
	r := *m
	err = s.tryReserve(src, &r, false)
	if errors.Is(err, errCanceled) {
		return s.ask(r.Token, func() error { return s.tryReserve(src, &r, true) })
	}
	if err != nil {
		s.queue(failedMessage(r.Token, err))
	}
	return nil
}

func (s *session) tryReserve(src *source, m *wire.Reserve, mayWait bool) error {
	em, err := src.emission(m.Edge, 0, "", nil)
	if err != nil {
		return err
	}
	if m.Size > maxArenaBytes {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, m.Size)
	}
	size := int(m.Size)
	e := src.emitter
	if !mayWait {
		e.cancel = atOnce
	}
	g := &grant{src: src, delivery: m.Delivery}
	g.buf = Buffer{e: e, em: em, codec: codec.ID(m.Codec), size: size, price: s.srv.bus.price(size)}
	if err := g.buf.admit(); err != nil {
		return err
	}
	if g.payload, g.own, err = s.room(size, mayWait); err != nil {
		g.buf.giveCredit()
		return err
	}
	return s.grant(m.Token, g)
}

// room finds room for a payload in the client's arena, or makes a segment for
// it alone.
func (s *session) room(size int, mayWait bool) (p *foreign, own bool, err error) {
	s.mu.Lock()
	arena := s.arena
	ready := arena != nil && arena.sealed
	s.mu.Unlock()
	if !ready {
		return nil, false, fmt.Errorf("%w: a client asks for its arena, maps it and seals it before it reserves room", ErrPayload)
	}
	room, err := arena.reserve(size, mayWait)
	switch {
	case err == nil:
		return arena.seg.payload(int64(room.Offset), size, func() { arena.rooms.Release(room) }), false, nil
	case errors.Is(err, errCanceled):
		return nil, false, err
	}
	mem, err := shmstore.CreateSegment("payload", int64(max(size, 1)))
	if err != nil {
		return nil, false, err
	}
	seg := newSegment(mem)
	defer seg.release() // the payload keeps it
	return seg.payload(0, size, func() {}), true, nil
}

// reserve takes room in the arena, and waits for it as long as a payload of
// the host's own would.
func (a *clientArena) reserve(size int, mayWait bool) (shmstore.Room, error) {
	room, err := a.rooms.TryReserve(max(size, 1))
	if !errors.Is(err, shmstore.ErrFull) {
		return room, err
	}
	if !mayWait {
		return room, errCanceled
	}
	enough := make(chan struct{})
	timer := time.AfterFunc(spillAfter, func() { close(enough) })
	defer timer.Stop()
	return a.rooms.Reserve(max(size, 1), enough)
}

// grant tells the client where it may write.
func (s *session) grant(token uint32, g *grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.ctx.Err() != nil {
		g.abort()
		return ErrClosed
	}
	s.lastGrant++
	s.grants[s.lastGrant] = g
	m := &wire.Grant{Token: token, Grant: s.lastGrant, Offset: uint64(g.payload.offset), Size: uint64(g.buf.size)}
	if g.own {
		s.lastSegment++
		m.Segment = s.lastSegment
		s.queue(m, g.payload.seg.mem.FD())
		return nil
	}
	m.Segment = s.arena.number
	s.queue(m)
	return nil
}

func (s *session) takeGrant(id uint32) (*grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[id]
	if g == nil {
		return nil, fmt.Errorf("%w: there is no grant %d", wire.ErrProtocol, id)
	}
	delete(s.grants, id)
	return g, nil
}

// send sends a payload that the client has filled in.
func (s *session) send(m *wire.Send) error {
	g, err := s.takeGrant(m.Grant)
	if err != nil {
		return err
	}
	if m.Size > uint64(g.buf.size) {
		g.abort()
		return fmt.Errorf("%w: %d bytes in room for %d", wire.ErrProtocol, m.Size, g.buf.size)
	}
	if g.own {
		if err := g.payload.seg.mem.Sealed(); err != nil {
			g.abort()
			return err
		}
	}
	if s.repeated(g.src, g.delivery) {
		g.abort()
		return nil
	}
	em := g.buf.em
	em.key, em.attrs, em.last = m.Key, m.Attrs, m.Flags&wire.FlagLast != 0
	g.buf.em, g.buf.lent = em, g.payload
	// An error means that the request is over, of which the client hears.
	_ = g.buf.sendLent(int(m.Size))
	return nil
}

func (s *session) abort(id uint32) error {
	g, err := s.takeGrant(id)
	if err == nil {
		g.abort()
	}
	return err
}

// maxOffered bounds the segments of a client's own.
const maxOffered = 64

// offer takes in memory that the client fills and keeps the books of.
func (s *session) offer(m *wire.Offer, fds []int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered[m.Segment] != nil || len(s.offered) >= maxOffered || m.Bytes > maxArenaBytes {
		closeAll(fds)
		return fmt.Errorf("%w: segment %d of %d bytes was offered before, or is one of more than %d", wire.ErrProtocol, m.Segment, m.Bytes, maxOffered)
	}
	mem, err := shmstore.OpenSegment("offer", fds[0], int64(m.Bytes))
	if err != nil {
		return err
	}
	seg := newSegment(mem)
	seg.lasting.Store(true)
	s.offered[m.Segment] = seg
	return nil
}

// put sends a payload that the client keeps the books of, until it is returned.
func (s *session) put(m *wire.Put) error {
	src, err := s.source(m.Source)
	if err != nil {
		return err
	}
	forward, err := s.forwarding(m.Flags, m.Delivery)
	if err != nil {
		return err
	}
	origin := &put{sess: s, id: m.Put}
	p, err := s.putPayload(m, origin.returned)
	if err != nil {
		return err
	}
	if src == nil {
		p.release()
		return nil
	}
	em, err := src.emission(m.Edge, m.Flags, m.Key, m.Attrs)
	if err != nil {
		p.release()
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	em.put = origin
	delivery, c := m.Delivery, codec.ID(m.Codec)
	counted, repeat := false, false
	return src.do(src.once(func(e Emitter) error {
		if !counted {
			counted, repeat = true, s.repeated(src, delivery)
		}
		switch {
		case repeat:
			return nil
		case forward != nil:
			return forward(e, em)
		}
		p.retain(1)
		return e.lend(p, c, em)
	}, func(err error) {
		if err != nil && !src.emitter.out.req.over() {
			src.emitter.out.req.end(Failed, err)
		}
		p.release()
	}))
}

// put is a payload that a node keeps the books of, as the host knows it.
type put struct {
	sess *session
	id   uint32
	gone atomic.Bool // returned
}

// returned tells the node that nobody needs the payload any more.
func (p *put) returned() {
	p.gone.Store(true)
	p.sess.queue(&wire.Returned{Puts: []uint32{p.id}})
}

// spent tells the node that credit came back for a payload that is still
// needed.
func (p *put) spent(credit uint64) {
	if p == nil || credit == 0 || p.gone.Load() {
		return
	}
	m := &wire.Spent{Put: p.id}
	if credit&bytesMask != 0 {
		m.Flags = wire.SpentBytes
	}
	p.sess.queue(m)
}

// putPayload finds the payload of a put. One that is forwarded only tells the
// client when it is returned.
func (s *session) putPayload(m *wire.Put, returned func()) (*foreign, error) {
	if m.Flags&(wire.FlagInline|wire.FlagForward) != 0 {
		p := &foreign{data: append([]byte{}, m.Payload...), free: returned}
		p.refs.Store(1)
		return p, nil
	}
	s.mu.Lock()
	seg := s.offered[m.Segment]
	if seg != nil && m.Flags&wire.FlagOwn != 0 {
		delete(s.offered, m.Segment)
		seg.lasting.Store(false)
		defer seg.release() // the payload keeps it
	}
	s.mu.Unlock()
	if seg == nil {
		return nil, fmt.Errorf("%w: segment %d was not offered", wire.ErrProtocol, m.Segment)
	}
	if size := uint64(seg.mem.Size()); m.Offset > size || m.Size > size-m.Offset {
		return nil, fmt.Errorf("%w: %d bytes at %d of a segment of %d", wire.ErrProtocol, m.Size, m.Offset, size)
	}
	return seg.payload(int64(m.Offset), int(m.Size), returned), nil
}
