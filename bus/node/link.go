package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/exchange"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/lastactive"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// link is a node's connection to its host, for one life of the host. A reader goroutine handles the
// host's messages.
type link struct {
	node      *Node
	conn      *peer.Conn
	in        *peer.Receiver
	sender    *peer.Sender
	welcome   wire.Welcome
	drained   chan struct{} // closed when the host drains
	drainOnce sync.Once
	done      chan struct{} // closed when the connection has ended

	tokens  atomic.Uint32
	account accounts.Account // the payloads that the host holds, and the segments that either side has announced

	wait       bus.Wait
	lastActive *lastactive.Tracker
	active     lastactive.Connection // polls the host's messages

	board    board                // shows the host the running handlers
	exchange *exchange.ValueStore // memory for this process's payloads of the exchange
	figures  sentFigures

	callerMu   lockorder.Right[lockorder.LinkCalling] // serializes ensureCaller and the starts of requests; taken before the locks of the parts
	lastSource uint32                                 // of a request; guarded by callerMu

	reports   reportLease
	state     linkState
	questions questions
	work      linkWork
	peers     peers
}

// dialLink connects to a host, and introduces this process.
func dialLink(ctx context.Context, path string, trust peer.DialOptions, bus, name string, wait bus.Wait) (*link, error) {
	conn, err := peer.Dial(ctx, path, trust)
	if err != nil {
		return nil, err
	}
	l := &link{
		conn: conn, in: peer.NewReceiver(conn), wait: wait, drained: make(chan struct{}), done: make(chan struct{}),
		reports: reportLease{askedAgain: make(chan struct{}, 1)}, questions: questions{pending: make(map[uint32]*question)},
		work:  linkWork{began: make(chan struct{}, 1), tasks: make(map[uint32]*nodeTask), requests: make(map[uint32]*remoteRequest)},
		peers: peers{senders: make(map[uint32]*peerLink), receivers: make(map[uint32]*peerLink)},
	}
	l.account.Open(l)
	l.lastActive = lastactive.New(wait.Spinner)
	l.active.Poll = l.in.Poll
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = l.introduce(bus, name)
	switch waits := stop(); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		err = unansweredErr(ctx, conn)
	case err == nil && waits:
		return l, nil
	case err == nil:
		err = context.Cause(ctx) // the deadline of the connection is in the past by now
	}
	l.hangUp()
	return nil, fmt.Errorf("at %s: %w", path, err)
}

// hangUp closes a connection that has no reader goroutine, and discards the received messages.
func (l *link) hangUp() {
	_ = l.conn.Close()
	l.in.Close()
	if l.sender != nil {
		_ = l.sender.Close()
	}
}

// unansweredErr is the error of a host that listens, but has not answered before the context ended.
// It blames the host if the host process is stopped, or if the deadline of the context has passed.
func unansweredErr(ctx context.Context, conn *peer.Conn) error {
	pid, _, _ := conn.Credentials()
	why := "had not answered yet"
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		why = "does not answer: it hangs, or has no time"
	}
	if proc, err := peer.Watch(conn); err == nil {
		if proc.Stopped() {
			why = "does not answer: it is stopped (SIGSTOP), and goes on with SIGCONT"
		}
		_ = proc.Close()
	}
	return fmt.Errorf("the host, process %d, %s: %w", pid, why, context.Cause(ctx))
}

func (l *link) introduce(bus, name string) error {
	hello := &wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.Version, PID: uint32(os.Getpid()), Bus: bus, Name: name}
	p, err := wire.Append(nil, hello, 0)
	if err != nil {
		return err
	}
	if err := l.conn.Send(p, nil); err != nil {
		return err
	}
	h, body, fds, err := l.in.Next()
	process.CloseAll(fds)
	if err != nil {
		return fmt.Errorf("the host hung up before it answered: %w", err)
	}
	m, err := wire.Parse(h, body)
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
	if l.welcome.Version != wire.Version {
		return fmt.Errorf("%w: the host chose version %d, and this process speaks %d", wire.ErrProtocol, l.welcome.Version, wire.Version)
	}
	if l.sender, err = peer.NewSender(l.conn, peer.SenderOptions{}); err != nil {
		return err
	}
	l.Queue(&wire.Lanes{})
	own, fd, err := l.conn.ShareLane()
	if err == nil {
		err = l.sender.Queue(own, fd)
	}
	return err
}

// run reads until the connection ends, and then ends the link's questions, tasks and requests.
func (l *link) run() {
	err := l.read()
	switch broken := l.sender.Err(); {
	case broken != nil && !errors.Is(broken, peer.ErrGone):
		err = broken
	case errors.Is(err, io.EOF):
		err = errors.New("the host is gone")
	}
	l.state.setHostGone(err)
	err = l.state.hostErr()
	questions := l.questions.close()
	tasks, requests := l.work.markLost()
	l.account.Close(false)
	l.exchange.Stop() // memory that is returned from here on may still be read
	_ = l.conn.Close()
	_ = l.sender.Close()
	close(l.done)
	l.reports.ended.Wait()
	l.board.close()
	for _, q := range questions {
		close(q.answers)
	}
	for _, t := range tasks {
		t.req.Control().End(bus.Aborted, err)
		t.askEnd() // a completed task waits for a message End, which does not come
	}
	for _, rr := range requests {
		rr.hostGone(err)
	}
	l.account.GiveBackAll(accounts.All)
	l.dropSegments()
}

// dropSegments unmaps the segments of the host. A segment in use stays mapped until its last
// release.
func (l *link) dropSegments() {
	for _, seg := range l.account.Drop() {
		seg.Release()
	}
}

func (l *link) read() error {
	defer l.in.Close()
	return l.in.Serve(func(h wire.Header, body []byte, fds []int) error {
		m, err := wire.Parse(h, body)
		if err != nil {
			process.CloseAll(fds)
			return err
		}
		return l.handle(m, fds)
	})
}

// handle handles one message. It owns the descriptors.
func (l *link) handle(m wire.Message, fds []int) error {
	switch m := m.(type) {
	case *wire.Segment:
		return l.mapSegment(m, fds)
	case *wire.Introduce:
		return l.meetPeer(m, fds)
	case *wire.Found:
		return l.found(m, fds)
	case *wire.Lane:
		return l.conn.OpenLane(m, fds[0], hostnode.Lane(l.wait))
	}
	process.CloseAll(fds)
	switch m := m.(type) {
	case *wire.Deliver:
		if m.Flags&wire.FlagAwaited != 0 {
			l.lastActive.Active(&l.active)
		}
		return l.deliver(m)
	case *wire.Returned:
		for _, id := range m.Puts {
			l.returned(id)
		}
	case *wire.Spent:
		l.spent(m)
	case *wire.Open:
		return l.startTask(m)
	case *wire.End:
		if t, _ := l.work.find(m.Task); t != nil {
			t.endInputs()
		}
	case *wire.Over:
		l.handleOver(m)
	case *wire.Forget:
		l.forgetSegment(m.Segment)
	case *wire.Expect:
		return l.expect(m)
	case *wire.Direct:
		return l.direct(m)
	case *wire.Report:
		l.startReports(time.Duration(m.Millis) * time.Millisecond)
	case *wire.Placed:
		l.answer(m.Token, m)
	case *wire.Fetched:
		return l.fetched(m)
	case *wire.Cleaned:
		l.answer(m.Token, m)
	case *wire.Published:
		l.answer(m.Token, m)
	case *wire.Streamed:
		if a := l.resequencerOf(m.Source); a != nil {
			return a.streamed(nil, m.Edge, m.Deliveries)
		}
	case *wire.Failed:
		l.answer(m.Token, m)
	case *wire.Serving:
		l.answer(m.Token, m)
	case *wire.Submitted:
		if rr := l.requestOf(m.Source); rr != nil {
			rr.answer(nil)
		}
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

// mapSegment handles the message Segment: it maps memory of the host.
func (l *link) mapSegment(m *wire.Segment, fds []int) error {
	mem, err := shmstore.OpenFillingSegment("host", fds[0], int64(m.Bytes))
	if err != nil {
		return err
	}
	faultpoint.Hit("node-segment-mapped")
	if !l.account.AddPeerSegment(m.Segment, accounts.Lasting(mem, nil), math.MaxInt) {
		mem.Close()
		return fmt.Errorf("%w: segment %d came twice", wire.ErrProtocol, m.Segment)
	}
	return nil
}

func (l *link) forgetSegment(number uint32) {
	seg := l.account.RemovePeerSegment(number)
	if seg != nil {
		seg.Release()
	}
}

func (l *link) requestOf(source uint32) *remoteRequest {
	_, rr := l.work.find(source)
	return rr
}

// deliver passes a delivery to its task, or a result to its request.
func (l *link) deliver(m *wire.Deliver) error {
	d, err := l.receive(m)
	if err != nil {
		return err
	}
	faultpoint.Hit("node-delivered")
	if a := l.resequencerOf(m.Source); a != nil {
		return a.relayed(m.Edge, d)
	}
	d.Control().Discard() // its request has ended: the host gets the delivery back
	return nil
}

func (l *link) handleOver(m *wire.Over) {
	outcome, err := hostnode.OutcomeOf(m)
	t, rr := l.work.forgetOver(m.Source, outcome == bus.Completed)
	switch {
	case t != nil:
		t.requestOver(outcome, err)
	case rr != nil:
		rr.answer(err) // if the request was not admitted
		rr.hostEnded(outcome, err)
	}
}

// resequencerOf is the resequencer of a task or of a submitted request; nil: it has ended.
func (l *link) resequencerOf(source uint32) *resequencer {
	switch t, rr := l.work.find(source); {
	case t != nil:
		return &t.in
	case rr != nil:
		return &rr.in
	}
	return nil
}

// streams are the streams of a task, or of a submitted request.
type streams struct {
	in      *resequencer
	out     *routes
	outputs []bus.Port
}

// streams is a snapshot of the streams of all open tasks and requests.
func (l *link) streams() []streams {
	tasks, requests := l.work.list()
	all := make([]streams, 0, len(tasks)+len(requests))
	for _, t := range tasks {
		all = append(all, streams{&t.in, &t.out, t.stage.Results})
	}
	for _, rr := range requests {
		all = append(all, streams{&rr.in, &rr.out, l.work.callerPart().Inputs})
	}
	return all
}
