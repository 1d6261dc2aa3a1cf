package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// session is one attached process, as the host sees it. Everything the process
// has is in here, so that it can be taken back when the process dies.
//
// Its reader goroutine handles messages as they come. What may have to wait,
// for credit or room, waits elsewhere: emissions in the queue of their source,
// which keeps their order, questions on goroutines of their own.
type session struct {
	srv     *Server
	conn    *peer.Conn
	proc    *peer.Process
	sender  *peer.Sender
	version uint16
	node    uint32
	name    string
	since   time.Time

	ctx    context.Context // ends with the session
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // goroutines that work for the client

	// mu comes after a remote stage's.
	mu           sync.Mutex
	gone         bool // no message is handled any more
	replicas     []*replica
	sources      map[uint32]*source
	held         map[uint32]*held
	kept         map[uint32]*kept // payloads of finished deliveries, until released
	lastDelivery uint32
	grants       map[uint32]*grant
	lastGrant    uint32
	questions    int // that are being answered
	arena        *clientArena
	offered      map[uint32]*segment // the client's own
	told         map[*segment]*told
	lastSegment  uint32
	byeSaid      bool
	stuckSince   time.Time
	stuck        bool
}

// held is a delivery that the client has and has not finished.
type held struct {
	d    *Delivery
	work *work // nil: a result
	at   time.Time
	told *told // the segment it lies in; nil: inline

	finishing bool // the client has said so
	released  bool // ... and that its payload may go
}

// kept is the payload of a delivery that the client has finished, and still
// reads.
type kept struct {
	payload *payload
	told    *told
}

// told is a segment that the client has been given.
type told struct {
	seg     *segment
	number  uint32
	uses    int
	lasting bool // more payloads may come in it
}

// maxQuestions is how many of a client's questions may be open.
const maxQuestions = 1024

func newSession(srv *Server, conn *peer.Conn, sender *peer.Sender, proc *peer.Process, hello *wire.Hello, version uint16, node uint32) *session {
	s := &session{
		srv: srv, conn: conn, sender: sender, proc: proc, version: version, node: node, name: hello.Name, since: time.Now(),
		sources: make(map[uint32]*source), held: make(map[uint32]*held), kept: make(map[uint32]*kept),
		grants: make(map[uint32]*grant), offered: make(map[uint32]*segment), told: make(map[*segment]*told),
	}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// describe names the process in reports.
func (s *session) describe() string {
	state := ""
	if s.proc.Stopped() {
		state = ", which is stopped (SIGSTOP?)"
	} else if since := s.sender.Blocked(); since > time.Second {
		state = fmt.Sprintf(", which has not read its socket for %v", since.Round(time.Second))
	}
	name := ""
	if s.name != "" {
		name = fmt.Sprintf(" (%s)", s.name)
	}
	return fmt.Sprintf("process %d%s%s", s.proc.PID(), name, state)
}

// queue sends a message. That the client has hung up is for the reader to find
// out, which may have a last message to read.
func (s *session) queue(m wire.Message, fds ...int) {
	if err := s.sender.Queue(m, fds...); err != nil && !errors.Is(err, peer.ErrGone) && !errors.Is(err, peer.ErrClosed) {
		s.fail(err)
	}
}

// fail ends the session from elsewhere.
func (s *session) fail(cause error) {
	s.cancel(cause)
	_ = s.conn.Close() // wakes the reader
}

// run handles messages until the client is gone, and takes everything back.
func (s *session) run(in *peer.Receiver) {
	s.queue(s.welcome())
	died := make(chan struct{})
	go func() { // the pidfd may be readable while a child keeps the socket open
		select {
		case <-s.proc.Done():
			_ = s.conn.Close()
		case <-died:
		}
	}()
	err := s.read(in)
	close(died)
	s.end(err)
}

func (s *session) welcome() *wire.Welcome {
	b := s.srv.bus
	return &wire.Welcome{
		Version: s.version, Node: s.node, Epoch: s.srv.epoch,
		InlineBytes: uint32(s.inlineBytes()), Bus: b.opts.Name,
		Inputs: wireEdges(b.graph.inputs, true), Results: wireEdges(b.graph.results, false),
	}
}

// inlineBytes bounds the payloads that travel in messages.
func (s *session) inlineBytes() int { return min(s.srv.bus.opts.InlineBytes, wire.MaxInline) }

// wireEdges describes edges to a client at one of their ends.
func wireEdges(edges []*edge, out bool) []wire.Edge {
	all := make([]wire.Edge, len(edges))
	for i, e := range edges {
		all[i] = wire.Edge{Name: e.name, Peer: e.spec.From, WindowBytes: uint64(e.windowBytes), Policy: wire.Policy(e.spec.Policy)}
		if out {
			all[i].Peer = e.spec.To
		}
		if e.spec.Window != Unbounded {
			all[i].Window = uint32(e.window)
		}
	}
	return all
}

// read handles messages until the connection ends. The error says why.
func (s *session) read(in *peer.Receiver) error {
	defer in.Close()
	for {
		h, body, fds, err := in.Next()
		if err == nil {
			var m wire.Message
			if m, err = wire.Parse(h, body, s.version); err != nil {
				closeAll(fds)
			} else {
				err = s.handle(m, fds)
			}
		}
		switch cause := context.Cause(s.ctx); {
		case err != nil && cause != nil:
			return cause
		case errors.Is(err, wire.ErrProtocol), errors.Is(err, shmstore.ErrProtocol):
			s.refuse(err)
			return err
		case err != nil:
			return err
		case s.byeSaid:
			return errBye
		}
	}
}

var errBye = errors.New("it left")

// closeAll closes descriptors that came from a peer.
func closeAll(fds []int) {
	for _, fd := range fds {
		_ = os.NewFile(uintptr(fd), "received").Close()
	}
}

// refuse tells a client what it did wrong.
func (s *session) refuse(err error) {
	s.queue(&wire.Refuse{Code: wire.CodeProtocol, Text: err.Error()})
	_ = s.sender.Close() // flushes
}

// handle handles one message. It owns the descriptors. An error ends the
// session.
func (s *session) handle(m wire.Message, fds []int) error {
	if offer, ok := m.(*wire.Offer); ok {
		return s.offer(offer, fds)
	}
	closeAll(fds)
	switch m := m.(type) {
	case *wire.Serve:
		return s.serve(m)
	case *wire.Finish:
		return s.finish(m)
	case *wire.Release:
		return s.releaseKept(m.Delivery)
	case *wire.Ended:
		return s.ended(m)
	case *wire.Leave:
		s.leave()
	case *wire.Emit:
		return s.emit(m)
	case *wire.Arena:
		return s.ask(m.Token, func() error { return s.makeArena(m) })
	case *wire.Sealed:
		return s.sealed(m.Segment)
	case *wire.Reserve:
		return s.reserve(m)
	case *wire.Send:
		return s.send(m)
	case *wire.Abort:
		return s.abort(m.Grant)
	case *wire.Put:
		return s.put(m)
	case *wire.Submit:
		return s.ask(m.Token, func() error { return s.submit(m) })
	case *wire.CloseSend:
		return s.closeSend(m.Source)
	case *wire.AbortRequest:
		return s.abortRequest(m)
	case *wire.Close:
		return s.closeRequest(m.Source)
	case *wire.Call:
		method, arguments := m.Method, append([]byte(nil), m.Arguments...)
		return s.ask(m.Token, func() error { return s.call(m.Token, method, arguments) })
	case *wire.Bye:
		s.byeSaid = true
	default:
		return fmt.Errorf("%w: %v is not for the host", wire.ErrProtocol, m.Kind())
	}
	return nil
}

// ask answers a question on a goroutine of its own, for it may have to wait.
func (s *session) ask(token uint32, answer func() error) error {
	s.mu.Lock()
	if s.questions++; s.questions > maxQuestions {
		s.mu.Unlock()
		return fmt.Errorf("%w: %d questions are open, %d may be", wire.ErrProtocol, s.questions, maxQuestions)
	}
	s.mu.Unlock()
	s.wg.Go(func() {
		if err := answer(); err != nil {
			s.queue(failedMessage(token, err))
		}
		s.mu.Lock()
		s.questions--
		s.mu.Unlock()
	})
	return nil
}

func failedMessage(token uint32, err error) *wire.Failed {
	return &wire.Failed{Token: token, Code: codeOf(err), Text: err.Error()}
}

// codes says which errors have codes of their own, the special ones first.
var codes = []struct {
	err  error
	code wire.Code
}{
	{ErrTooLarge, wire.CodeTooLarge},
	{ErrWindowFull, wire.CodeWindowFull},
	{ErrNoEdge, wire.CodeUnknown},
	{errUnknown, wire.CodeUnknown},
	{ErrOverloaded, wire.CodeOverloaded},
	{ErrClosed, wire.CodeClosing},
	{ErrEnded, wire.CodeOver},
	{ErrAborted, wire.CodeOver},
	{ErrDeadline, wire.CodeOver},
	{shmstore.ErrMemory, wire.CodeMemory},
	{ErrPayload, wire.CodeInvalid},
	{ErrConfig, wire.CodeInvalid},
}

func codeOf(err error) wire.Code {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return wire.CodeInternal
}

var errUnknown = errors.New("there is no such thing")

// end takes back everything that the client had.
func (s *session) end(reason error) {
	died := s.awaitDeath(reason)
	cause := s.causeOf(reason, died)
	s.srv.log.Info("a process is gone", slog.Int("pid", s.proc.PID()), slog.String("name", s.name), slog.Any("reason", cause))
	s.cancel(cause)
	_ = s.conn.Close()
	s.wg.Wait() // nothing is emitted or finished for the client from here on
	s.mu.Lock()
	s.gone = true
	replicas := s.replicas
	s.mu.Unlock()

	// A host that closes reuses no memory: what is mapped stays as it is.
	keep := s.pin(died || errors.Is(reason, errHostClosing))
	s.leave() // first, so that nothing moves from one of its replicas to another
	for _, rep := range replicas {
		rep.remote.detach(rep, cause)
		if f := s.srv.opts.OnGone; f != nil {
			f(rep.remote.stage.spec.Name, rep.number, s.proc.PID(), cause)
		}
	}
	s.takeBack(cause)
	if keep != nil {
		s.awaitRelease()
		keep()
	}
	s.dropSegments()
	_ = s.sender.Close()
	_ = s.proc.Close()
	s.srv.forget(s)
}

// deathGrace is how long after its socket a process may take to die: the
// kernel closes a victim's descriptors, and tears down its memory, before it
// is dead.
const deathGrace = 2 * time.Second

// awaitDeath reports whether the process is dead, after its connection ended.
func (s *session) awaitDeath(reason error) bool {
	if errors.Is(reason, errBye) || errors.Is(reason, errHostClosing) {
		return s.proc.Exited()
	}
	wait := deathGrace
	if !errors.Is(reason, io.EOF) {
		wait = 0 // it broke the protocol, and most likely lives
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-s.proc.Done():
		return true
	case <-timer.C:
		return s.proc.Exited()
	}
}

// causeOf says what happened, for the errors of requests.
func (s *session) causeOf(reason error, died bool) error {
	who := fmt.Sprintf("process %d", s.proc.PID())
	switch {
	case errors.Is(reason, errHostClosing):
		return ErrClosed
	case errors.Is(reason, errBye):
		return fmt.Errorf("%s left", who)
	case died:
		text := "died"
		if f := s.srv.opts.Autopsy; f != nil {
			if more := f(s.proc.PID()); more != "" {
				text = "died: " + more
			}
		}
		return fmt.Errorf("%s %s", who, text)
	case errors.Is(reason, io.EOF):
		return fmt.Errorf("%s closed its connection, and lives on", who)
	}
	return fmt.Errorf("%s: %w", who, reason)
}

// pin keeps the payloads that a living process may still be reading. The
// function it returns lets them go; nil: it reads none.
func (s *session) pin(harmless bool) (unpin func()) {
	if harmless || s.byeSaid {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*payload
	for _, h := range s.held {
		all = append(all, h.d.hold())
	}
	for _, k := range s.kept {
		all = append(all, k.payload)
	}
	clear(s.kept)
	return func() {
		for _, p := range all {
			p.release()
		}
	}
}

// awaitRelease waits until nobody in the client reads any more: it is dead.
func (s *session) awaitRelease() { <-s.proc.Done() }

// takeBack gives back what the client had besides the work of its stages.
func (s *session) takeBack(cause error) {
	s.mu.Lock()
	grants, kept, sources, all := s.grants, s.kept, s.sources, s.held
	s.grants, s.kept, s.sources, s.held = nil, nil, nil, nil
	s.mu.Unlock()
	for _, src := range sources {
		if src.req != nil {
			src.req.Abort(cause)
			src.req.Close()
		}
	}
	for _, g := range grants {
		g.abort()
	}
	for _, k := range kept {
		k.payload.release()
	}
	for _, h := range all {
		if h.work == nil {
			_ = h.d.Finish(nil) // a result, in the client's hands alone
		} else {
			s.orphan(h.work)
		}
	}
}

// orphan finishes a work of a request that is over, which nobody displaced.
func (s *session) orphan(w *work) {
	r := w.rt.task.stage.remote
	r.mu.Lock()
	mine := w.replica != nil && w.replica.agent == agent(s)
	r.mu.Unlock()
	if mine {
		r.orphaned(w)
	}
}

// dropSegments gives up the host's share of all memory that the client made,
// and the references to what it was told of.
func (s *session) dropSegments() {
	s.mu.Lock()
	arena, offered, known := s.arena, s.offered, s.told
	s.arena, s.offered, s.told = nil, nil, nil
	s.mu.Unlock()
	if arena != nil {
		arena.rooms.Close()
		s.srv.retireSegment(arena.seg)
	}
	for _, seg := range offered {
		s.srv.retireSegment(seg)
	}
	for seg := range known {
		seg.release()
	}
}

// checkAlive ends a session that has work and does not move for the given time.
func (s *session) checkAlive(limit time.Duration) {
	stopped := s.proc.Stopped()
	blocked := s.sender.Blocked()
	s.mu.Lock()
	busy := len(s.held) > 0 || blocked > 0
	if !busy || (!stopped && blocked == 0) {
		s.stuckSince = time.Time{}
		s.mu.Unlock()
		return
	}
	if s.stuckSince.IsZero() {
		s.stuckSince = time.Now()
	}
	stuck := !s.stuck && time.Since(s.stuckSince) >= limit
	s.stuck = s.stuck || stuck
	s.mu.Unlock()
	if !stuck {
		return
	}
	reason := fmt.Errorf("%s made no progress for %v", s.describe(), limit)
	s.srv.log.Warn("a process is stuck: it gets no more work", "pid", s.proc.PID(), "reason", reason)
	if f := s.srv.opts.OnStuck; f != nil {
		f(s.proc.PID(), reason)
	}
	s.fail(reason)
}

func (s *session) stats() ProcessStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := ProcessStats{
		Node: s.node, PID: s.proc.PID(), Name: s.name, Held: len(s.held), Grants: len(s.grants),
		Age: time.Since(s.since), Stopped: s.proc.Stopped(),
	}
	for _, rep := range s.replicas {
		st.Stages = append(st.Stages, fmt.Sprintf("%s/%d", rep.remote.stage.spec.Name, rep.number))
	}
	for _, src := range s.sources {
		if src.req != nil {
			st.Requests++
		}
	}
	if s.arena != nil {
		a := s.arena.rooms.Stats()
		st.Arena = ArenaStats{Bytes: a.Bytes, Used: a.UsedBytes, Rooms: a.Rooms}
	}
	return st
}

func (s *session) holdings() []Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Holding
	for _, h := range s.held {
		all = append(all, Holding{
			PID: s.proc.PID(), Name: s.name, Stage: h.d.flow.edge.spec.To, Request: uint64(h.d.flow.req.id),
			Edge: h.d.flow.edge.name, Seq: h.d.Seq, Bytes: len(h.d.Bytes()), Age: time.Since(h.at),
		})
	}
	return all
}

func (s *session) check() []shmstore.Violation {
	s.mu.Lock()
	arena := s.arena
	s.mu.Unlock()
	if arena == nil {
		return nil
	}
	return arena.rooms.Check()
}
