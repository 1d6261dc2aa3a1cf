package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
	"github.com/omnibus-runtime/omnibus/internal/limits"
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
	srv    *Server
	conn   *peer.Conn
	proc   *peer.Process
	sender *peer.Sender
	node   uint32
	name   string
	since  time.Time

	ctx     context.Context // ends with the session
	cancel  context.CancelCauseFunc
	reads   atomic.Int64   // payloads that it put and that somebody needs
	alone   aloneCount     // memory that was made for one of its payloads each
	memory  offeredCount   // its own that it has offered
	wg      sync.WaitGroup // goroutines that work for the client
	working sync.WaitGroup // of those, the ones that do what it has said

	account  ledger.Account                 // what it has here, and the memory that it and the host have told each other of
	said     struct{ deliver wire.Deliver } // what is being queued, with the account's lock held
	keptSaid atomic.Bool                    // the log says that what it keeps fills memory
	byeSaid  bool                           // the reader's
	looks    looking                        // at what the client sends

	questions openQuestions
	sources   sourceSet
	seats     seats
	past      past
	reports   reports
	ex        exchanging
	movement  movement
}

// maxQuestions is how many of a client's questions may be open.
const maxQuestions = 1024

func newSession(srv *Server, conn *peer.Conn, sender *peer.Sender, proc *peer.Process, hello *wire.Hello, node uint32) *session {
	s := &session{
		srv: srv, conn: conn, sender: sender, proc: proc, node: node, name: hello.Name, since: time.Now(),
		sources: sourceSet{all: make(map[uint32]*source)},
		past:    past{expects: make(map[uint32][]*directFlow), passed: make(map[uint32]passed)},
		ex:      exchanging{waits: make(map[uint32]*exchangeWait)},
	}
	s.account.Open(s)
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
	s.queued(s.sender.Queue(m, fds...))
}

// queued is told what became of a message.
func (s *session) queued(err error) {
	if err != nil && !errors.Is(err, peer.ErrGone) && !errors.Is(err, peer.ErrClosed) {
		s.fail(err)
	}
}

// later is queue of a message that the client need not have before the next one.
func (s *session) later(m wire.Message) {
	s.queued(s.sender.Later(m))
}

// ShowMemory implements ledger.Teller.
func (s *session) ShowMemory(number uint32, mem *shmstore.Segment) error {
	s.queue(&wire.Segment{Segment: number, Bytes: uint64(mem.Size())}, mem.FD())
	return nil
}

// HideMemory implements ledger.Teller.
func (s *session) HideMemory(number uint32) { s.queue(&wire.Forget{Segment: number}) }

// queueFor is queue of a message about a request. While a session handles packets about the
// request, the message travels with all else that they cause.
func (s *session) queueFor(r *Request, m wire.Message) {
	if t := r.turn.Load(); t != nil {
		t.Hold(s.sender)
	}
	s.queue(m)
}

// fail ends the session from elsewhere.
func (s *session) fail(cause error) {
	s.cancel(cause)
	_ = s.conn.Close() // wakes the reader
}

// run handles messages until the connection ends, and has everything taken back.
func (s *session) run(in *peer.Receiver) {
	// Behind what the process has sent, for a child of it may keep the socket open.
	stop := s.proc.OnExit(s.conn.HangUp)
	err := s.read(in)
	stop()
	s.ends(err)
}

func (s *session) welcome() *wire.Welcome {
	return &wire.Welcome{
		Version: wire.Version, Node: s.node, Epoch: s.srv.epoch,
		InlineBytes: uint32(s.srv.on.inlineBytes), Bus: s.srv.on.name,
		Inputs: wireEdges(s.srv.on.inputs), Results: wireEdges(s.srv.on.results), Tensors: wireTensors(s.srv.on.inputs),
	}
}

// wireEdges describes edges to a client at one of their ends.
func wireEdges(ports []port) []wire.Edge {
	all := make([]wire.Edge, len(ports))
	for i, p := range ports {
		all[i] = wire.Edge{Name: p.name, Peer: p.peer, WindowBytes: uint64(p.windowBytes), Policy: wire.Policy(p.policy)}
		if p.window != Unbounded {
			all[i].Window = uint32(p.window)
		}
	}
	return all
}

// wireTensors says how tensors travel on edges, to whoever emits there.
func wireTensors(ports []port) []wire.Tensors {
	all := make([]wire.Tensors, len(ports))
	for i, p := range ports {
		all[i] = wire.Tensors{Transport: wire.Transport(p.tensors), MinBytes: uint64(p.tensorMinBytes)}
	}
	return all
}

// read handles messages until the connection ends. The error says why.
func (s *session) read(in *peer.Receiver) error {
	defer in.Close()
	turn := sessionTurn{sess: s}
	in.OnIdle(turn.end)
	defer turn.end()
	s.looks.look = in.Look
	defer s.srv.on.directory.Leave(s)
	defer s.srv.on.heard.gone(&s.looks)
	came := false
	err := in.Serve(func(h wire.Header, body []byte, fds []int) error {
		m, err := wire.Parse(h, body)
		if err != nil {
			peer.CloseAll(fds)
		} else {
			s.srv.on.heard.from(&s.looks)
			turn.take(m)
			err = s.handle(m, fds)
		}
		switch cause := context.Cause(s.ctx); {
		case err != nil:
			came = true
		case cause != nil:
		case s.byeSaid:
			return errBye
		}
		return err
	})
	switch cause := context.Cause(s.ctx); {
	case cause != nil:
		return cause
	case errors.Is(err, errBye):
		return err
	}
	if code, said := codeOf(err); said || came { // else the connection is over
		s.refuse(code, err)
	}
	return err
}

var errBye = errors.New("it left")

// errStuck says that a process that lives reads nothing, or does nothing.
var errStuck = errors.New("it made no progress")

// refuse tells a client why the host does not go on with it.
func (s *session) refuse(code wire.Code, err error) {
	s.queue(&wire.Refuse{Code: code, Text: err.Error()})
	_ = s.sender.Close() // flushes
}

// codeOf is the code by which an error ends a session, and whether it says so itself.
func codeOf(err error) (code wire.Code, said bool) {
	switch {
	case errors.Is(err, shmstore.ErrProtocol):
		return wire.CodeProtocol, true
	case errors.As(err, &code):
		return code, true
	}
	return wire.CodeInternal, false
}

// handle handles one message. It owns the descriptors. An error ends the
// session.
func (s *session) handle(m wire.Message, fds []int) error {
	switch m := m.(type) {
	case *wire.Offer:
		return s.offer(m, fds)
	case *wire.Publish:
		s.publish(m, fds[0])
		return nil
	case *wire.Lane:
		return s.openLane(m, fds[0])
	}
	peer.CloseAll(fds)
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
		return s.leave(m.Stages...)
	case *wire.Lanes:
		s.past.open()
	case *wire.Expecting:
		return s.expecting(m)
	case *wire.Streamed:
		return s.streamed(m)
	case *wire.Reported:
		return s.reports.reported(m)
	case *wire.Lent:
		return s.lent(m.Delivery)
	case *wire.Clear:
		s.srv.circle.clear(s.node, m.Peer)
	case *wire.Put:
		return s.put(m)
	case *wire.Forget:
		return s.forgetOffer(m.Segment)
	case *wire.Place:
		return s.place(m)
	case *wire.Fetch:
		return s.fetch(m)
	case *wire.Cancel:
		s.cancelQuestion(m.Token)
	case *wire.Cleanup:
		s.cleanup(m)
	case *wire.Withdraw:
		s.withdraw(m)
	case *wire.Find:
		s.find(m)
	case *wire.Submit:
		return s.submit(m)
	case *wire.CloseSend:
		return s.closeSend(m.Source)
	case *wire.AbortRequest:
		return s.abortRequest(m)
	case *wire.Close:
		return s.closeRequest(m.Source)
	case *wire.Call:
		return s.called(m)
	case *wire.Bye:
		s.byeSaid = true
	default:
		return fmt.Errorf("%w: %v is not for the host", wire.ErrProtocol, m.Kind())
	}
	return nil
}

// openLane has packets go past the kernel, both ways.
func (s *session) openLane(m *wire.Lane, fd int) error {
	own, ownFD, err := s.conn.ShareLane()
	if err != nil {
		peer.CloseAll([]int{fd})
		return err
	}
	s.queue(own, ownFD)
	return s.conn.OpenLane(m, fd, s.srv.on.wait.lane())
}

// ask answers a question on a goroutine of its own, for it may have to wait.
func (s *session) ask(token uint32, answer func() error) error {
	if err := s.questions.begin(); err != nil {
		return err
	}
	s.wg.Go(func() {
		defer s.questions.end()
		if err := answer(); err != nil {
			s.queue(failedMessage(token, err))
		}
	})
	return nil
}

// failedMessage answers a question with an error. Of what this process lacks it says so, for
// the client may be told to raise its own limits by errors that read the same.
func failedMessage(token uint32, err error) *wire.Failed {
	m := codes.failed(token, err)
	if l, lacks := limits.Met(err); lacks {
		m.Code, m.Text = wire.CodeMemory, fmt.Sprintf("%v: in the host, process %d: %s", err, os.Getpid(), l.Advice)
	}
	return m
}

// codeTable says by which codes errors travel, the special ones first.
type codeTable []struct {
	err  error
	code wire.Code
}

// failed answers a question with an error.
func (t codeTable) failed(token uint32, err error) *wire.Failed {
	m := &wire.Failed{Token: token, Code: wire.CodeInternal, Text: err.Error()}
	for _, c := range t {
		if errors.Is(err, c.err) {
			m.Code = c.code
			break
		}
	}
	return m
}

// codes are those of all errors but the directory's.
var codes = codeTable{
	{ErrTooLarge, wire.CodeTooLarge},
	{ErrWindowFull, wire.CodeWindowFull},
	{ErrNoEdge, wire.CodeUnknown},
	{errUnknown, wire.CodeUnknown},
	{ErrOverloaded, wire.CodeOverloaded},
	{ErrClosed, wire.CodeClosing},
	{errCanceled, wire.CodeClosing}, // by the end of the session
	{ErrEnded, wire.CodeOver},
	{ErrAborted, wire.CodeOver},
	{ErrDeadline, wire.CodeOver},
	{shmstore.ErrMemory, wire.CodeMemory},
	{ErrPayload, wire.CodeInvalid},
	{ErrConfig, wire.CodeInvalid},
	{errAfterEnd, wire.CodeInvalid},
	{connector.ErrNotFound, wire.CodeNothing},
	{connector.ErrFull, wire.CodeOverloaded},
	{connector.ErrKey, wire.CodeInvalid},
	{connector.ErrUnavailable, wire.CodeMemory}, // a table has no other
}

var errUnknown = errors.New("there is no such thing")

// unknownError is an errUnknown that says of what there is none.
type unknownError string

func (e unknownError) Error() string { return string(e) }

func (unknownError) Is(target error) bool { return target == errUnknown }
