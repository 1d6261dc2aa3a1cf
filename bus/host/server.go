package host

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// ListenOptions configure Listen. The zero value works.
type ListenOptions struct {
	// AllowUIDs are the users that may attach besides the one this process
	// runs as.
	AllowUIDs []uint32
	// Autopsy says what is known about a process that died: its exit status,
	// the last lines of its log. It goes into the errors of requests. It should
	// return within some 100 ms.
	Autopsy func(pid int) string
	// Number is asked when a process is going to serve a stage, and gives the lowest
	// number that it may have among the stage's replicas: that under which the caller
	// knows it, say. It gets the first one from there on that is free. It must not block.
	Number func(stage string, pid int) int
	// OnServe is told when a process serves a stage, and OnGone when it does
	// not any more, with the reason. They must not block.
	OnServe func(stage string, replica, pid int)
	OnGone  func(stage string, replica, pid int, reason error)
	// OnStuck is told of a process that has work and was stopped, or has not
	// read its messages, for the bus's StallTimeout. It gets no work from then
	// on; what it holds comes back when it is dead. It must not block.
	OnStuck func(pid int, reason error)
	// OnHung is OnStuck for a process with a handler that has not returned within the HandleTimeout of its stage.
	// A process in Go or Python writes its stacks to standard error when it gets SIGQUIT.
	OnHung func(pid int, reason error)
	// Methods are calls that clients may make besides the bus's own. What they
	// return is sent as JSON.
	Methods map[string]func(ctx context.Context, arguments []byte) (any, error)
	// Answered is told when the answer of one of the Methods has been sent, or waits
	// for a client that does not read: what ends the server is done then, and not by
	// the method, whose answer it could overtake. It must not block.
	Answered func(method string)
}

// mode lets other users try, if any are allowed: who they are is looked at
// then.
func (o ListenOptions) mode() fs.FileMode {
	if len(o.AllowUIDs) > 0 {
		return 0o666
	}
	return 0o600
}

// Server lets processes take part in a bus over a socket. It is described in
// docs/protocol.md.
type Server struct {
	backend  bus.Backend
	services bus.Services
	opts     ListenOptions
	ln       *peer.Listener
	epoch    uint64
	log      *slog.Logger

	arena    *accounts.Segment // of the bus's store
	unmap    sync.Once
	sources  atomic.Uint32
	refusing atomic.Bool  // no new requests
	files    atomic.Int64 // segments that processes keep views in: see accounts.Account.Files

	introductions introductions
	grants        *grants

	closing context.Context // its end: the server closes
	close   context.CancelFunc
	wg      sync.WaitGroup // accepting, watching, and sessions

	mu       lockorder.Mutex[lockorder.Server] // guards what follows
	sessions map[*session]struct{}
	nodes    uint32 // number of the last one
	draining bool   // clients are told that the host is going to stop
}

// Listen opens a socket through which other processes serve the bus's Remote
// stages, and submit requests. The store must be in shared memory. Close the
// server before the bus.
func Listen(b *bus.Bus, path string, opts ListenOptions) (*Server, error) {
	on, err := b.Backend().Services()
	if err != nil {
		return nil, fmt.Errorf("bus: listen: %w", err)
	}
	ln, err := peer.Listen(path, peer.ListenOptions{Mode: opts.mode()})
	if err != nil {
		on.Arena.Close()
		return nil, fmt.Errorf("bus: listen: %w", err)
	}
	s := &Server{
		backend: b.Backend(), services: on, opts: opts, ln: ln, epoch: newEpoch(), log: on.Log, arena: accounts.Lasting(on.Arena, nil),
		sessions: make(map[*session]struct{}),
	}
	s.closing, s.close = context.WithCancel(context.Background())
	s.grants = newGrants(on.Permits)
	s.arena.CountIn(on.Kept)
	s.wg.Go(func() { s.accept(s.ln.Accept) })
	s.wg.Go(func() { b.Backend().WatchStalls(s.closing.Done(), s.checkStalls) })
	if least := on.HandleTimeout; least > 0 {
		s.wg.Go(func() { s.watchHandlers(least) })
	}
	return s, nil
}

// newEpoch draws the number that tells this server from all others.
func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// accept serves the connections that next gives, until the server closes. What keeps it from that is logged once, until
// the next connection comes.
func (s *Server) accept(next func() (*peer.Conn, error)) {
	said := false
	for {
		conn, err := next()
		if err != nil {
			select {
			case <-s.closing.Done():
				return
			default:
			}
			// Out of descriptors, most likely: others are served meanwhile.
			if !said {
				s.log.Error("processes that attach have to wait", slog.Any("error", limits.Explain(err)))
			}
			said = true
			select {
			case <-s.closing.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		said = false
		s.wg.Go(func() { s.serve(conn) })
	}
}

// serve runs one connection to its end.
func (s *Server) serve(conn *peer.Conn) {
	in := peer.NewReceiver(conn)
	sess, err := s.handshake(conn, in)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) { // it only looked whether somebody listens
			level = slog.LevelDebug
		}
		s.log.Log(context.Background(), level, "a process could not attach", slog.Any("error", err))
		in.Close()
		_ = conn.Close()
		return
	}
	sess.run(in)
}

// helloTimeout is how long a peer may take to say who it is.
const helloTimeout = 5 * time.Second

// refuseTimeout is how long it may take to tell a peer that it may not attach.
const refuseTimeout = time.Second

// handshake takes in a peer that may attach.
func (s *Server) handshake(conn *peer.Conn, in *peer.Receiver) (*session, error) {
	pid, uid, _ := conn.Credentials()
	refuse := func(code wire.Code, format string, args ...any) error {
		text := fmt.Sprintf(format, args...)
		_ = conn.SetDeadline(time.Now().Add(refuseTimeout)) // the first may be over
		if p, err := wire.Append(nil, &wire.Refuse{Code: code, Text: text}, 0); err == nil {
			_ = conn.Send(p, nil) // the peer may be gone: the error says why either way
		}
		return fmt.Errorf("process %d of user %d: %s", pid, uid, text)
	}
	if err := conn.SetDeadline(time.Now().Add(helloTimeout)); err != nil {
		return nil, err
	}
	defer s.expireOnClose(conn)()
	hello, err := receiveHello(in)
	select {
	case <-s.closing.Done():
		return nil, refuse(wire.CodeClosing, "%v", bus.ErrClosed)
	default:
	}
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("process %d of user %d left without a word: %w", pid, uid, err)
	case err != nil:
		return nil, refuse(wire.CodeProtocol, "the first message must be hello: %v", err)
	}
	_, ok := wire.Negotiate(hello.VersionMin, hello.VersionMax, wire.VersionMin, wire.Version)
	switch {
	case !s.allowed(uid):
		return nil, refuse(wire.CodeDenied, "user %d may not attach: add it to allow_uids, or run as the host's user", uid)
	case !ok:
		return nil, refuse(wire.CodeVersion, "the peer speaks versions %d to %d of the protocol, and this host version %d: use a client and a host of one release", hello.VersionMin, hello.VersionMax, wire.Version)
	case hello.Bus != "" && hello.Bus != s.services.Name:
		return nil, refuse(wire.CodeBus, "the bus %q lives here, not %q", s.services.Name, hello.Bus)
	case pid == 0 || uint32(pid) != hello.PID:
		return nil, refuse(wire.CodeDenied, "process %d calls itself %d: it lives in another pid namespace, where its death cannot be seen; run it in the host's", pid, hello.PID)
	}
	proc, err := peer.Watch(conn)
	if err != nil {
		return nil, refuse(wire.CodeInternal, "its process cannot be watched: %v", limits.Explain(err))
	}
	sess, err := s.admit(conn, proc, hello)
	if err != nil {
		_ = proc.Close()
		return nil, refuse(wire.CodeClosing, "%v", err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		sess.fail(err) // run finds out
	}
	return sess, nil
}

// expireOnClose has a peer be waited for no longer when the host closes, until the function
// that it returns is called.
func (s *Server) expireOnClose(conn *peer.Conn) (enough func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-s.closing.Done():
			_ = conn.SetDeadline(time.Now()) // it may be gone
		case <-over:
		}
	}()
	return func() { close(over) }
}

func receiveHello(in *peer.Receiver) (*wire.Hello, error) {
	h, body, fds, err := in.Next()
	process.CloseAll(fds)
	if err != nil {
		return nil, err
	}
	var hello wire.Hello
	if h.Kind != wire.KindHello {
		return nil, fmt.Errorf("it is %v", h.Kind)
	}
	return &hello, wire.Decode(body, &hello)
}

func (s *Server) allowed(uid uint32) bool {
	return uid == uint32(os.Getuid()) || slices.Contains(s.opts.AllowUIDs, uid)
}

func (s *Server) admit(conn *peer.Conn, proc *process.Process, hello *wire.Hello) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Err() != nil {
		return nil, bus.ErrClosed
	}
	sender, err := peer.NewSender(conn, peer.SenderOptions{})
	if err != nil {
		return nil, err
	}
	s.nodes++
	sess := newSession(s, conn, sender, proc, hello, s.nodes)
	s.sessions[sess] = struct{}{}
	s.wg.Add(1)                // until it is forgotten
	sess.queue(sess.welcome()) // before others find the session, who have more to say to it
	if s.draining {
		sess.queue(&wire.Drain{})
	}
	return sess, nil
}

// live is a snapshot of the sessions.
func (s *Server) live() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*session, 0, len(s.sessions))
	for sess := range s.sessions {
		all = append(all, sess)
	}
	slices.SortFunc(all, func(a, b *session) int { return int(a.node) - int(b.node) })
	return all
}

func (s *Server) removeSession(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessions, sess)
	s.wg.Done()
}

// retireSegment tells everybody that nothing new will lie in a segment.
func (s *Server) retireSegment(seg *accounts.Segment) {
	for _, sess := range s.live() {
		sess.account.Retire(seg)
	}
	seg.Release()
}

// checkStalls finds what waits past the host, and for the exchange, and gives up processes
// that have work and do not move.
func (s *Server) checkStalls(atLeast time.Duration) []bus.Stall {
	// The next look comes within the lease, however long the stall timeout is.
	stalls := s.inFlight(max(reportLease, atLeast)).stalls(s.backend, atLeast)
	for _, sess := range s.live() {
		sess.checkAlive(atLeast)
	}
	return stalls
}

// Addr is the path of the socket.
func (s *Server) Addr() string { return s.ln.Path() }

// GiveUp fails the requests that wait for a process to serve the stage, now
// and until one does. A nil error lets them wait again.
func (s *Server) GiveUp(stage string, err error) {
	if st, _ := s.backend.RemoteStage(stage); st != nil {
		st.GiveUp(err)
	}
}

// Serving is how many processes serve a remote stage.
func (s *Server) Serving(stage string) int {
	if st, _ := s.backend.RemoteStage(stage); st != nil {
		return st.Served()
	}
	return 0
}

// Retire has the processes of some pids get no more work, and tells them to end: others take their place. It does not wait.
func (s *Server) Retire(retires func(pid int) bool) {
	for _, sess := range s.live() {
		if retires(sess.proc.PID()) {
			_ = sess.leaveStages() // of all stages there is none too many
			sess.queue(&wire.Drain{})
		}
	}
}

// Refuse keeps new requests of clients out, from now on, and those that have not begun: they
// fail with ErrClosed.
func (s *Server) Refuse() {
	s.refusing.Store(true)
	for _, sess := range s.live() {
		sess.rejectAll(errRefusing)
	}
}

// Drain tells every client that the host is going to stop, also those that attach
// from now on. It does not wait.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	for _, sess := range s.live() {
		sess.queue(&wire.Drain{})
	}
}

// Close ends all connections and removes the socket. Requests of clients that
// are still open end with ErrClosed. What a client still holds comes back when
// it has let go: Close waits for that until the context ends. For a peer that has yet to
// say who it is it does not.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	err := s.ln.Close()
	for _, sess := range s.live() {
		sess.cancel(errHostClosing) // first: the client may hang up at once
		sess.queue(&wire.Bye{})
		sess.fail(errHostClosing)
	}
	gone := make(chan struct{})
	go func() {
		s.wg.Wait()
		s.grants.close()
		s.unmap.Do(s.arena.Release)
		_ = accounts.Unmapped(context.Background())
		close(gone)
	}()
	select {
	case <-gone:
		return err
	case <-ctx.Done():
		return fmt.Errorf("bus: close the server: %s: %w", s.unfinished(), context.Cause(ctx))
	}
}

// unfinished says what Close waits for.
func (s *Server) unfinished() string {
	var process string
	for _, sess := range s.live() {
		process = cmp.Or(process, "processes still hold payloads:") + " " + sess.Describe()
	}
	return cmp.Or(process, "no process is attached any more, and its memory is not given back yet: close it with more time")
}

var errHostClosing = fmt.Errorf("%w: the host closes", bus.ErrClosed)

// ProcessStats are the figures of one attached process.
type ProcessStats struct {
	Node     uint32        `json:"node"`
	PID      int           `json:"pid"`
	Name     string        `json:"name"`
	Stages   []string      `json:"stages"`   // "stage/replica"
	Held     int           `json:"held"`     // deliveries and results that it has not finished
	Requests int           `json:"requests"` // that it submitted and that are not over
	Direct   int           `json:"direct"`   // streams that come to it, or go from it, past the host, of what is not over
	Placed   int           `json:"placed"`   // payloads of its in the exchange, or fetched and not finished
	Fetched  int           `json:"fetched"`  // payloads that it has from the exchange
	Kept     KeptStats     `json:"kept"`     // payloads that it reads though it has finished their deliveries
	Left     KeptStats     `json:"left"`     // ... and those that it may read, though its connection is over
	Arena    ArenaStats    `json:"arena"`
	Age      time.Duration `json:"age_ns"`
	Stopped  bool          `json:"stopped"`
	// Unreported says that the process has been asked what it has under way past the host, and
	// has not said: the figures lack that.
	Unreported bool `json:"unreported,omitempty"`
}

// KeptStats are the figures of payloads that a process keeps.
type KeptStats struct {
	Payloads int           `json:"payloads"`
	Bytes    int64         `json:"bytes"`
	Oldest   time.Duration `json:"oldest_ns"` // since the process got the first of them
}

// ArenaStats are the figures of the memory that a process has offered.
type ArenaStats struct {
	Bytes    int64 `json:"bytes"`
	Used     int64 `json:"used_bytes"`
	Payloads int   `json:"rooms"` // payloads that lie there and are not returned
	// Of these, those that have a segment alone, because they are large or there was no
	// room for them.
	Alone      int   `json:"alone"`
	AloneBytes int64 `json:"alone_bytes"`
}

// Processes lists who is attached.
func (s *Server) Processes() []ProcessStats {
	all := []ProcessStats{}
	for _, sess := range s.live() {
		all = append(all, sess.stats())
	}
	return all
}

// Holding is what one process holds, or what lies in the exchange and is nobody's, for
// reports.
type Holding struct {
	PID     int                `json:"pid"` // 0: it is of no process
	Name    string             `json:"name"`
	Stage   string             `json:"stage"` // empty: a result
	Request messages.RequestID `json:"request,omitzero"`
	Edge    string             `json:"edge"`
	Seq     uint64             `json:"seq"`
	Bytes   int                `json:"bytes"`
	Direct  bool               `json:"direct,omitempty"` // it came past the host
	Age     time.Duration      `json:"age_ns"`
	// Of several payloads together: what they are, how many, and how old the oldest is.
	// Those kept are of deliveries that the process has finished, and reads on. Those
	// left are what it may read, though its connection is over. Those alone are its
	// own, each in memory that was made for it; they are of no known age. Those unreported
	// are what others may have from the process past the host: it has been asked, and has
	// not said. Their number is not known, and only the method leases lists them.
	Together string `json:"together,omitempty"` // kept, left, alone, or unreported
	Payloads int    `json:"payloads,omitempty"`
	// Of a payload in the exchange: its key, and whether the process has placed it,
	// and nobody has fetched it, or has fetched it. What is lasting was placed to
	// outlive its process: nobody has it.
	Key      string `json:"key,omitempty"`
	Exchange string `json:"exchange,omitempty"` // placed, fetched, or lasting
}

// Holdings lists the payloads that attached processes hold, and those in the exchange
// that are nobody's, the oldest first.
func (s *Server) Holdings() []Holding {
	all := []Holding{}
	for _, sess := range s.live() {
		all = append(all, sess.holdings()...)
	}
	all = append(all, s.inFlight(reportLease).held...)
	all = append(all, Holding{PID: os.Getpid(), Name: "the host"}.values(s.services.Exchange.Values(), "placed")...)
	all = append(all, Holding{Name: "nobody"}.values(s.services.Exchange.Lasting(), "lasting")...)
	slices.SortStableFunc(all, func(a, b Holding) int { return int(b.Age - a.Age) })
	return all
}

// leases are the holdings, and the processes whose reports they lack.
func (s *Server) leases() []Holding {
	all := s.Holdings()
	for _, silent := range s.inFlight(reportLease).silent {
		all = append(all, Holding{PID: silent.by.proc.PID(), Name: silent.by.name, Direct: true, Together: "unreported"})
	}
	return all
}

// Check looks at the books of the arenas of attached processes.
func (s *Server) Check() []shmstore.Violation {
	var all []shmstore.Violation
	for _, sess := range s.live() {
		all = append(all, sess.check()...)
	}
	return all
}
