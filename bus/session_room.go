package bus

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

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
		size = min(s.arenaBytes(), int64(len(s.srv.bus.store.Arena())))
	}
	if most := max(s.mostBytes(), s.arenaBytes()); size <= 0 || size > most {
		return fmt.Errorf("%w: an arena of %d bytes: ask for 1 to %d, or for 0", ErrPayload, size, most)
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

// maxArenaBytes bounds what a client may reserve at a time. What the machine has free
// bounds it first.
const maxArenaBytes = 1 << 40

// arenaBytes is as much as the client's windows can need, and a third more for
// what lies between payloads. Where windows may exceed the store together
// (Options.Overcommit) that is more than there is memory for.
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
	src      *source // nil: for the exchange
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
	if m.Source == wire.Exchange && s.version >= wire.KindPlace.Since() {
		return s.reserveKeyed(m)
	}
	src, err := s.source(m.Source)
	if err != nil {
		return err
	}
	if src == nil {
		s.queue(failedMessage(m.Token, ErrEnded))
		return nil
	}
	r := *m
	err = s.reserveFor(src, &r, try)
	if errors.Is(err, errCanceled) {
		return s.ask(r.Token, func() error { return s.reserveFor(src, &r, wait) })
	}
	if err != nil {
		s.queue(failedMessage(r.Token, err))
	}
	return nil
}

func (s *session) reserveFor(src *source, m *wire.Reserve, how pace) error {
	em, err := src.emission(m.Edge, 0, "", nil)
	if err != nil {
		return err
	}
	if m.Size > maxArenaBytes {
		return fmt.Errorf("%w: %d bytes", ErrTooLarge, m.Size)
	}
	size := int(m.Size)
	g := &grant{src: src, delivery: m.Delivery}
	g.buf = Buffer{e: src.emits(how), em: em, codec: codec.ID(m.Codec), size: size, price: s.srv.bus.price(size)}
	if err := g.buf.admit(); err != nil {
		return src.explain(err)
	}
	if slices.ContainsFunc(g.buf.edges, func(ed *edge) bool { return ed.alone(g.buf.price) }) {
		g.own = true
		g.payload, err = aloneInSegment(size)
	} else {
		g.payload, g.own, err = s.room(size, how)
	}
	if err != nil {
		g.buf.giveCredit()
		return err
	}
	g.buf.spilt = g.own
	return s.grant(m.Token, g)
}

// room finds room for a payload in the client's arena, or makes a segment for
// it alone.
func (s *session) room(size int, how pace) (p *foreign, own bool, err error) {
	arena, err := s.sealedArena()
	if err != nil {
		return nil, false, err
	}
	room, err := arena.reserve(size, how)
	switch {
	case err == nil:
		return arena.payload(room, size), false, nil
	case errors.Is(err, errCanceled):
		return nil, false, err
	}
	if p, err = aloneInSegment(size); err == nil {
		s.alone.count(p)
	}
	return p, true, err
}

// sealedArena is the client's arena, once nobody else can write to it.
func (s *session) sealedArena() (*clientArena, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arena == nil || !s.arena.sealed {
		return nil, fmt.Errorf("%w: a client asks for its arena, maps it and seals it before it reserves room", ErrPayload)
	}
	return s.arena, nil
}

// payload makes room in the arena a payload, which gives it back.
func (a *clientArena) payload(room shmstore.Room, size int) *foreign {
	return a.seg.payload(int64(room.Offset), size, func() { a.rooms.Release(room) })
}

// aloneInSegment makes a segment that the client fills with one payload.
func aloneInSegment(size int) (*foreign, error) {
	mem, err := shmstore.CreateSegment("payload", int64(max(size, 1)))
	if err != nil {
		return nil, err
	}
	return aloneIn(mem, size, func() {}), nil
}

// reserve takes room in the arena, and waits for it as long as a payload of
// the host's own would: not at all, where views that processes keep take it.
func (a *clientArena) reserve(size int, how pace) (shmstore.Room, error) {
	room, err := a.rooms.TryReserve(max(size, 1))
	if !errors.Is(err, shmstore.ErrFull) {
		return room, err
	}
	if how == try {
		return room, errCanceled
	}
	if a.seg.kept.crowded(a.seg.mem.Size()) {
		return room, err
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
	if g.src == nil {
		g.abort()
		return fmt.Errorf("%w: grant %d is for the exchange", wire.ErrProtocol, m.Grant)
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
	o := s.count(g.src, g.delivery)
	if o.repeat {
		g.abort()
		return nil
	}
	em := g.buf.em
	em.key, em.attrs, em.last = m.Key, m.Attrs, m.Flags&wire.FlagLast != 0
	g.buf.em, g.buf.lent = em, g.payload
	err = g.buf.sendLent(int(m.Size))
	switch req := g.src.out().req; {
	case err == nil:
		o.went()
	case !req.over(): // nobody waits for an answer, and what follows would do without the payload
		req.end(Failed, err)
	}
	return nil
}

func (s *session) abort(id uint32) error {
	g, err := s.takeGrant(id)
	if err == nil {
		g.abort()
	}
	return err
}
