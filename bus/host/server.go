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
	// AllowUIDs are the users that may attach besides the user of this process.
	AllowUIDs []uint32
	// Autopsy returns what is known of a dead process, such as its exit status and the last lines of
	// its log. The text goes into the errors of requests. Autopsy should return within some 100 ms.
	Autopsy func(pid int) string
	// Number is called before a process serves a stage. It returns the lowest number that the process
	// may get among the stage's replicas; the process gets the first free number from there on. Number
	// must not block.
	Number func(stage string, pid int) int
	// OnServe is called when a process begins to serve a stage, OnGone when the process no longer
	// serves it, with the reason. They must not block.
	OnServe func(stage string, replica, pid int)
	OnGone  func(stage string, replica, pid int, reason error)
	// OnStuck is called for a process that has work and, for the bus's StallTimeout, is stopped or does
	// not read its messages. The process gets no more work; what it holds is taken back when it is
	// dead. OnStuck must not block.
	OnStuck func(pid int, reason error)
	// OnHung is called, like OnStuck, for a process with a handler that has not returned within the
	// HandleTimeout of its stage. A process in Go or Python writes its stacks to standard error on
	// SIGQUIT.
	OnHung func(pid int, reason error)
	// Methods are calls that clients may make besides the bus's own. Their results are sent as JSON.
	Methods map[string]func(ctx context.Context, arguments []byte) (any, error)
	// Answered is called when the answer of one of the Methods has been sent, or is queued for a client
	// that does not read. An action that ends the server belongs here: in the method itself it could
	// overtake the answer. Answered must not block.
	Answered func(method string)
}

// mode lets every user connect if any other users are allowed: the handshake checks the user.
func (o ListenOptions) mode() fs.FileMode {
	if len(o.AllowUIDs) > 0 {
		return 0o666
	}
	return 0o600
}

// Server lets processes take part in a bus over a socket. docs/protocol.md describes the protocol.
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
	files    atomic.Int64 // segments in which processes keep views: see accounts.Account.Files

	introductions introductions
	grants        *grants

	closing context.Context // done when the server closes
	close   context.CancelFunc
	wg      sync.WaitGroup // accept loop, watchers and sessions

	mu       lockorder.Mutex[lockorder.Server] // guards what follows
	sessions map[*session]struct{}
	nodes    uint32 // number of the last node
	draining bool   // clients are told that the host is about to stop
}

// Listen opens a socket through which other processes serve the bus's Remote stages and submit
// requests. The bus's store must be in shared memory. Close the server before the bus.
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

// newEpoch returns a random number that identifies this server.
func newEpoch() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// accept serves the connections that next returns, until the server closes. A failure is logged once,
// until the next connection is accepted.
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
			// Most likely this process has no descriptors left. Attached processes are served
			// meanwhile.
			if !said {
				s.log.Error("connections cannot be accepted for now", slog.Any("error", limits.Explain(err)))
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

// serve runs one connection until it ends.
func (s *Server) serve(conn *peer.Conn) {
	in := peer.NewReceiver(conn)
	sess, err := s.handshake(conn, in)
	if err != nil {
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) { // the peer only checked whether a host listens
			level = slog.LevelDebug
		}
		s.log.Log(context.Background(), level, "a process could not attach", slog.Any("error", err))
		in.Close()
		_ = conn.Close()
		return
	}
	sess.run(in)
}

// helloTimeout is how long a peer may take to send its hello.
const helloTimeout = 5 * time.Second

// refuseTimeout is how long sending a refusal may take.
const refuseTimeout = time.Second

// handshake admits a peer that may attach, and refuses others.
func (s *Server) handshake(conn *peer.Conn, in *peer.Receiver) (*session, error) {
	pid, uid, _ := conn.Credentials()
	refuse := func(code wire.Code, format string, args ...any) error {
		text := fmt.Sprintf(format, args...)
		_ = conn.SetDeadline(time.Now().Add(refuseTimeout)) // the first deadline may have passed
		if p, err := wire.Append(nil, &wire.Refuse{Code: code, Text: text}, 0); err == nil {
			_ = conn.Send(p, nil) // the peer may be gone; the error gives the reason either way
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
		return nil, fmt.Errorf("process %d of user %d hung up before its hello: %w", pid, uid, err)
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
		return nil, refuse(wire.CodeDenied, "process %d calls itself %d: it is in another pid namespace, and the host cannot observe its death; run it in the host's namespace", pid, hello.PID)
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
		sess.fail(err) // run returns the error
	}
	return sess, nil
}

// expireOnClose ends the waiting for a peer when the host closes, until the returned function is
// called.
func (s *Server) expireOnClose(conn *peer.Conn) (enough func()) {
	over := make(chan struct{})
	go func() {
		select {
		case <-s.closing.Done():
			_ = conn.SetDeadline(time.Now()) // the connection may be closed
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
	s.wg.Add(1)                // until removeSession
	sess.queue(sess.welcome()) // before other goroutines find the session and queue messages
	if s.draining {
		sess.queue(&wire.Drain{})
	}
	return sess, nil
}

// live returns a snapshot of the sessions, by node number.
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

// retireSegment tells all sessions that no further payload will lie in a segment.
func (s *Server) retireSegment(seg *accounts.Segment) {
	for _, sess := range s.live() {
		sess.account.Retire(seg)
	}
	seg.Release()
}

// checkStalls returns the stalls of direct paths and of the exchange, and ends the sessions of
// processes that have work and make no progress.
func (s *Server) checkStalls(atLeast time.Duration) []bus.Stall {
	// The next check comes within the lease, however long the stall timeout is.
	stalls := s.inFlight(max(reportLease, atLeast)).stalls(s.backend, atLeast)
	for _, sess := range s.live() {
		sess.checkAlive(atLeast)
	}
	return stalls
}

// Addr returns the path of the socket.
func (s *Server) Addr() string { return s.ln.Path() }

// GiveUp fails the requests that wait for a process to serve the stage, now and until a process serves
// it. After a nil error requests wait again.
func (s *Server) GiveUp(stage string, err error) {
	if st, _ := s.backend.RemoteStage(stage); st != nil {
		st.GiveUp(err)
	}
}

// Serving returns how many processes serve a remote stage.
func (s *Server) Serving(stage string) int {
	if st, _ := s.backend.RemoteStage(stage); st != nil {
		return st.Served()
	}
	return 0
}

// Retire gives the processes that retires selects no more work and tells them to leave, so that other
// processes can take over. It does not wait.
func (s *Server) Retire(retires func(pid int) bool) {
	for _, sess := range s.live() {
		if retires(sess.proc.PID()) {
			_ = sess.leaveStages() // without stage numbers there is no error
			sess.queue(&wire.Drain{})
		}
	}
}

// Refuse refuses new requests of clients from now on, and ends those that have not begun; they fail
// with ErrClosed.
func (s *Server) Refuse() {
	s.refusing.Store(true)
	for _, sess := range s.live() {
		sess.rejectAll(errRefusing)
	}
}

// Drain tells every client, also those that attach later, that the host is about to stop. It does not
// wait.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	for _, sess := range s.live() {
		sess.queue(&wire.Drain{})
	}
}

// Close ends all connections and removes the socket. Open requests of clients end with ErrClosed. Close
// waits, until the context ends, for the clients to give back the payloads that they hold. It does not
// wait for a peer that has not sent its hello.
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

// unfinished names the sessions that Close waits for.
func (s *Server) unfinished() string {
	var process string
	for _, sess := range s.live() {
		process = cmp.Or(process, "processes still hold payloads:") + " " + sess.Describe()
	}
	return cmp.Or(process, "no process is attached any more, but memory is not given back yet: give Close more time")
}

var errHostClosing = fmt.Errorf("%w: the host closes", bus.ErrClosed)

// ProcessStats are the figures of one attached process.
type ProcessStats struct {
	Node     uint32        `json:"node"`
	PID      int           `json:"pid"`
	Name     string        `json:"name"`
	Stages   []string      `json:"stages"`   // "stage/replica"
	Held     int           `json:"held"`     // deliveries and results that the process has not finished
	Requests int           `json:"requests"` // live requests that the process submitted
	Direct   int           `json:"direct"`   // direct streams of live requests to or from the process
	Placed   int           `json:"placed"`   // its payloads in the exchange, or fetched and not finished
	Fetched  int           `json:"fetched"`  // payloads that it fetched from the exchange
	Kept     KeptStats     `json:"kept"`     // payloads that it still reads after it finished their deliveries
	Left     KeptStats     `json:"left"`     // payloads that it may still read after its connection ended
	Arena    ArenaStats    `json:"arena"`
	Age      time.Duration `json:"age_ns"`
	Stopped  bool          `json:"stopped"`
	// Unreported says that the process has not answered the question for its direct deliveries: the
	// figures do not include them.
	Unreported bool `json:"unreported,omitempty"`
}

// KeptStats are the figures of payloads that a process keeps.
type KeptStats struct {
	Payloads int           `json:"payloads"`
	Bytes    int64         `json:"bytes"`
	Oldest   time.Duration `json:"oldest_ns"` // since the process got the oldest of them
}

// ArenaStats are the figures of the memory that a process has offered.
type ArenaStats struct {
	Bytes    int64 `json:"bytes"`
	Used     int64 `json:"used_bytes"`
	Payloads int   `json:"rooms"` // payloads in this memory that are not returned
	// Payloads with a segment of their own, because they are large or no space was free.
	Alone      int   `json:"alone"`
	AloneBytes int64 `json:"alone_bytes"`
}

// Processes lists the attached processes.
func (s *Server) Processes() []ProcessStats {
	all := []ProcessStats{}
	for _, sess := range s.live() {
		all = append(all, sess.stats())
	}
	return all
}

// Holding is a payload, or a group of payloads, that a process holds or that lies in the exchange, for
// reports.
type Holding struct {
	PID     int                `json:"pid"` // 0: no process
	Name    string             `json:"name"`
	Stage   string             `json:"stage"` // empty: it is a result
	Request messages.RequestID `json:"request,omitzero"`
	Edge    string             `json:"edge"`
	Seq     uint64             `json:"seq"`
	Bytes   int                `json:"bytes"`
	Direct  bool               `json:"direct,omitempty"` // the delivery came over a direct path
	Age     time.Duration      `json:"age_ns"`
	// For a group of payloads: its kind, the number of payloads, and the age of the oldest. Kind
	// "kept": the process finished their deliveries and still reads them. "left": the process may still
	// read them after its connection ended. "alone": payloads of the process that each have a segment
	// of their own; their age is not known. "unreported": the process has not reported its direct
	// deliveries; their number is not known, and only the method leases lists this kind.
	Together string `json:"together,omitempty"` // kept, left, alone, or unreported
	Payloads int    `json:"payloads,omitempty"`
	// For a payload in the exchange: its key, and its state. "placed": the process placed it, and no
	// process has fetched it. "fetched": the process fetched it. "lasting": it outlives the process
	// that placed it, and has no holder.
	Key      string `json:"key,omitempty"`
	Exchange string `json:"exchange,omitempty"` // placed, fetched, or lasting
}

// Holdings lists the payloads that attached processes hold and the lasting payloads in the exchange,
// the oldest first.
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

// leases returns the holdings, and an entry for each process that has not reported.
func (s *Server) leases() []Holding {
	all := s.Holdings()
	for _, silent := range s.inFlight(reportLease).silent {
		all = append(all, Holding{PID: silent.by.proc.PID(), Name: silent.by.name, Direct: true, Together: "unreported"})
	}
	return all
}

// Check checks the accounts of attached processes against their memory.
func (s *Server) Check() []shmstore.Violation {
	var all []shmstore.Violation
	for _, sess := range s.live() {
		all = append(all, sess.check()...)
	}
	return all
}
