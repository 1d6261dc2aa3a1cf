package host

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lastactive"
	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// session is the host's view of one attached process. It records everything that the process holds, so
// that the host can take it back when the process dies.
//
// The reader goroutine handles messages in their order. Emissions that wait for credit or space wait in
// the queue of their source, which keeps their order. Questions that may wait are answered on
// goroutines of their own.
type session struct {
	srv    *Server
	conn   *peer.Conn
	proc   *process.Process
	sender *peer.Sender
	node   uint32
	name   string
	since  time.Time

	ctx     context.Context // ends with the session
	cancel  context.CancelCauseFunc
	alone   aloneCount     // segments for one payload each
	memory  offeredCount   // segments that the client has offered
	wg      sync.WaitGroup // goroutines that work for the client
	working sync.WaitGroup // of those, the goroutines that run the client's requests and emissions

	account     accounts.Account               // what the client holds, and the segments that client and host know of each other
	outgoing    struct{ deliver wire.Deliver } // the message being queued; used with the account's lock held
	keptLogged  atomic.Bool                    // the log has the warning about kept views that fill memory
	filesLogged atomic.Bool                    // the log has the warning about kept views that use the host's descriptors
	byeReceived bool                           // used by the reader alone
	active      lastactive.Connection          // when the client was last active
	board       atomic.Pointer[board]          // where the client says which handlers it runs; nil: the client has none
	progress    atomic.Uint64                  // grows with each message that is work; odd while a message is being handled

	questions openQuestions
	sources   sourceSet
	submits   submitQueue
	replicas  replicas
	direct    directPaths
	reports   reports
	exchange  exchangeState
	stall     stallDetector
}

// maxQuestions is how many questions of a client may be open.
const maxQuestions = 1024

func newSession(srv *Server, conn *peer.Conn, sender *peer.Sender, proc *process.Process, hello *wire.Hello, node uint32) *session {
	s := &session{
		srv: srv, conn: conn, sender: sender, proc: proc, node: node, name: hello.Name, since: time.Now(),
		sources:  sourceSet{all: make(map[uint32]*source)},
		direct:   directPaths{expects: make(map[uint32][]*directFlow), totals: make(map[uint32]directTotals)},
		exchange: exchangeState{waits: make(map[uint32]*exchangeWait)},
	}
	s.account.Open(s)
	s.account.CountFiles(&srv.files)
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	return s
}

// Describe names the process in reports.
func (s *session) Describe() string {
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

// queue sends a message. It ignores that the client has hung up: the reader finds out, after it has
// read the last messages.
func (s *session) queue(m wire.Message, fds ...int) {
	s.checkQueued(s.sender.Queue(m, fds...))
}

// checkQueued ends the session if a message could not be queued.
func (s *session) checkQueued(err error) {
	if err != nil && !errors.Is(err, peer.ErrGone) && !errors.Is(err, peer.ErrClosed) {
		s.fail(limits.Explain(err))
	}
}

// queueLater queues a message that may wait for the next one.
func (s *session) queueLater(m wire.Message) {
	s.checkQueued(s.sender.QueueLater(m))
}

// ShowMemory implements accounts.Announcer.
func (s *session) ShowMemory(number uint32, mem *shmstore.Segment) error {
	s.queue(&wire.Segment{Segment: number, Bytes: uint64(mem.Size())}, mem.FD())
	return nil
}

// HideMemory implements accounts.Announcer.
func (s *session) HideMemory(number uint32) { s.queue(&wire.Forget{Segment: number}) }

// queueFor queues a message about a request. While a session handles a batch of packets about the
// request, the message is sent with all other messages that the batch causes.
func (s *session) queueFor(r *bus.Request, m wire.Message) {
	if t := r.Control().FlushBatch().Load(); t != nil {
		t.Owner.(*peer.PacketBatch).Add(s.sender) //nolint:forcetypeassert // only packetBatch stores a FlushBatch
	}
	s.queue(m)
}

// fail ends the session from another goroutine; the reader notices.
func (s *session) fail(cause error) {
	s.cancel(cause)
	s.conn.HangUp()
}

// run handles messages until the connection ends, then takes back everything that the client holds.
func (s *session) run(in *peer.Receiver) {
	// OnExit hangs up after the process's last messages. A child of the process may keep the socket
	// open.
	stop := s.proc.OnExit(s.conn.HangUp)
	err := s.read(in)
	stop()
	s.connectionEnded(err)
}

func (s *session) welcome() *wire.Welcome {
	return &wire.Welcome{
		Version: wire.Version, Segments: mostSegments(), Node: s.node, Epoch: s.srv.epoch,
		InlineBytes: uint32(s.srv.services.InlineBytes), LargestMib: uint32(min(s.srv.services.MostBytes>>20, math.MaxUint32)), Bus: s.srv.services.Name,
		Inputs: wireEdges(s.srv.services.Inputs), Results: wireEdges(s.srv.services.Results), Tensors: wireTensors(s.srv.services.Inputs),
	}
}

// wireEdges describes edges to the client at one of their ends.
func wireEdges(ports []bus.Port) []wire.Edge {
	all := make([]wire.Edge, len(ports))
	for i, p := range ports {
		all[i] = wire.Edge{Name: p.Name, Peer: p.Peer, WindowBytes: uint64(p.WindowBytes), Policy: p.Policy}
		if p.Window != bus.Unbounded {
			all[i].Window = uint32(p.Window)
		}
	}
	return all
}

// wireTensors tells the client, which emits on the edges, how tensors travel there.
func wireTensors(ports []bus.Port) []wire.Tensors {
	all := make([]wire.Tensors, len(ports))
	for i, p := range ports {
		all[i] = wire.Tensors{Transport: p.Tensors, MinBytes: uint64(p.TensorMinBytes)}
	}
	return all
}

// read handles messages until the connection ends. The error says why.
func (s *session) read(in *peer.Receiver) error {
	defer in.Close()
	batch := packetBatch{sess: s}
	batch.note.Owner = &batch.batch
	in.OnIdle(batch.flush)
	defer batch.flush()
	s.active.Poll = in.Poll
	defer s.srv.services.Directory.WithdrawAll(s)
	defer s.srv.services.LastActive.Gone(&s.active)
	came := false
	err := in.Serve(func(h wire.Header, body []byte, fds []int) error {
		if s.ctx.Err() != nil {
			process.CloseAll(fds)
			return context.Cause(s.ctx)
		}
		m, err := wire.Parse(h, body)
		if err != nil {
			process.CloseAll(fds)
		} else {
			s.srv.services.LastActive.Active(&s.active)
			s.progress.Add(1)
			batch.add(m)
			err = s.handle(m, fds)
			s.progress.Add(progressWhenHandled(m))
		}
		switch cause := context.Cause(s.ctx); {
		case err != nil:
			came = true
		case cause != nil:
		case s.byeReceived:
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
	if code, said := codeOf(err); said || came { // else the connection has ended
		s.refuse(code, err)
	}
	return err
}

var errBye = errors.New("it left")

// errStuck says that a live process reads no messages, or makes no progress.
var errStuck = errors.New("it made no progress")

// refuse tells a client why the host ends the session.
func (s *session) refuse(code wire.Code, err error) {
	s.queue(&wire.Refuse{Code: code, Text: err.Error()})
	_ = s.sender.Close() // flushes the queue
}

// codeOf returns the code by which an error ends a session, and whether the error names that code
// itself.
func codeOf(err error) (code wire.Code, said bool) {
	switch {
	case errors.Is(err, shmstore.ErrProtocol):
		return wire.CodeProtocol, true
	case errors.As(err, &code):
		return code, true
	}
	return wire.CodeInternal, false
}

// handle handles one message. It owns the descriptors. An error ends the session.
func (s *session) handle(m wire.Message, fds []int) error {
	switch m := m.(type) {
	case *wire.Offer:
		return s.offer(m, fds)
	case *wire.Publish:
		s.publish(m, fds[0])
		return nil
	case *wire.Lane:
		return s.openLane(m, fds[0])
	case *wire.Scoreboard:
		return s.shareScoreboard(fds[0])
	}
	process.CloseAll(fds)
	switch m := m.(type) {
	case *wire.Serve:
		return s.serve(m)
	case *wire.Finish:
		return s.finish(m)
	case *wire.Release:
		return s.releaseKept(m.Delivery)
	case *wire.Ended:
		return s.taskEnded(m)
	case *wire.Leave:
		return s.leaveStages(m.Stages...)
	case *wire.Lanes:
		s.direct.enable()
	case *wire.Expecting:
		return s.expecting(m)
	case *wire.Streamed:
		return s.streamed(m)
	case *wire.Reported:
		return s.reports.add(m)
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
		return s.handleCall(m)
	case *wire.Bye:
		s.byeReceived = true
	default:
		return fmt.Errorf("%w: %v is not for the host", wire.ErrProtocol, m.Kind())
	}
	return nil
}

// openLane moves packets in both directions from the socket to shared memory.
func (s *session) openLane(m *wire.Lane, fd int) error {
	own, ownFD, err := s.conn.ShareLane()
	if err != nil {
		process.CloseAll([]int{fd})
		return err
	}
	s.queue(own, ownFD)
	return s.conn.OpenLane(m, fd, hostnode.Lane(s.srv.services.Wait))
}

// answerAsync answers a question on a goroutine of its own, since the answer may have to wait.
func (s *session) answerAsync(token uint32, answer func() error) error {
	if err := s.questions.add(); err != nil {
		return err
	}
	s.wg.Go(func() {
		defer s.questions.done()
		if err := answer(); err != nil {
			s.queue(hostnode.Failed(token, err))
		}
	})
	return nil
}
