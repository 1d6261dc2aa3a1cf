package chaos

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// sideEnv says as what a bad peer of a lane takes part.
const sideEnv = "OMNIBUS_CHAOS_SIDE"

// The sides, seen from the bad peer.
const (
	asStage    = "as a stage"                // that an honest node calls
	asSink     = "as a stage without output" // which sends nothing past the host
	asCaller   = "as a caller"               // of a stage that an honest node serves
	readyLine  = "ready"
	laneStage  = "echo"
	laneWindow = 8
	laneBytes  = 256 << 10
)

// laneEnd is a bad peer's end: its connection to the host, its lanes to an
// honest node, and how far it has come.
type laneEnd struct {
	peerEnd
	side   string
	inline []byte
	put    uint32

	source   uint32 // its task, or its request
	relayed  uint64 // what it has sent through the host
	direct   *wire.Direct
	held     uint32 // a delivery of the honest node's; 0: none yet
	told     bool   // it may do its worst
	worst    bool   // ... and does
	ends     bool   // it means to do nothing, and sees its request to the end
	sequence uint64 // of the next delivery that it sends
	number   uint32 // ... of the last

	fromHost chan hostMessage
	fromPeer chan wire.Message
	emitted  map[uint32]func() error // what follows a put
	begun    chan struct{}           // receives when it may do its worst
	let      chan struct{}           // closed when it may end
	head     atomic.Uint64           // what it says it has let go of; 0: the truth
	meeting  func(*laneEnd, *wire.Introduce, []int) error

	// What it has met the honest node with.
	socket   *peer.Conn
	own      *shmstore.Segment
	frames   *lane.Event // the peer's, waiting for frames
	sender   *lane.Sender
	receiver *lane.Receiver
}

type hostMessage struct {
	wire.Message
	fds []int
	err error
}

// misuseLanes is the process of a bad peer of a lane. When it has something of
// a request it says so, and goes on. When it is told to, and everything goes past
// the host, it does its worst. Then it says how its request ended, and lives on.
func misuseLanes() error {
	l := &laneEnd{
		peerEnd: peerEnd{path: os.Getenv(bus.EnvSocket)}, side: os.Getenv(sideEnv), inline: make([]byte, 16),
		fromHost: make(chan hostMessage), fromPeer: make(chan wire.Message), emitted: make(map[uint32]func() error),
		begun: make(chan struct{}, 1), let: make(chan struct{}),
	}
	tc := badLanes[os.Getenv(caseEnv)]
	l.ends = tc.said == completed
	var err error
	if l.conn, err = peer.Dial(context.Background(), l.path, peer.DialOptions{}); err != nil {
		return err
	}
	l.in = peer.NewReceiver(l.conn)
	if err := l.join(encode(&wire.Lanes{})); err != nil {
		return err
	}
	go l.listen()
	go l.read()
	if err := l.begin(); err != nil {
		return err
	}
	if l.meeting = tc.meet; l.meeting == nil {
		l.meeting = (*laneEnd).meet
	}
	over, err := l.work(tc.do != nil)
	if err == nil && over == "" {
		l.worst = true
		if err = tc.do(l); err == nil {
			over, err = l.end()
		}
	}
	if err != nil {
		return err
	}
	fmt.Println(strings.ReplaceAll(over, "\n", " "))
	<-l.let
	return nil
}

// read takes the line that lets it do its worst, and waits for the end.
func (l *laneEnd) read() {
	stdin := bufio.NewReader(os.Stdin)
	if _, err := stdin.ReadString('\n'); err == nil {
		l.begun <- struct{}{}
	}
	_, _ = io.Copy(io.Discard, stdin) // until it is let go
	close(l.let)
}

// listen passes on what the host says.
func (l *laneEnd) listen() {
	for {
		h, body, fds, err := l.in.Next()
		var m wire.Message
		if err == nil {
			m, err = wire.Parse(h, append([]byte(nil), body...))
		}
		l.fromHost <- hostMessage{m, fds, err}
		if err != nil {
			return
		}
	}
}

func (l *laneEnd) say(m wire.Message) error { return l.raw(encode(m)) }

// begin serves the stage, or calls it.
func (l *laneEnd) begin() error {
	if l.side == asCaller {
		return l.say(&wire.Submit{Source: wire.OwnSource | 1, Flags: wire.SubmitTell})
	}
	return l.say(&wire.Serve{Stage: laneStage})
}

// work does what it should, until it may do its worst, the streams go past the
// host both ways, and it has a delivery that it does not finish; or until its
// request is over.
func (l *laneEnd) work(goesPast bool) (over string, err error) {
	for !goesPast || !l.told || !l.straight() || l.held == 0 {
		select {
		case <-l.let:
			return "", errors.New("it was let go too early")
		case <-l.begun:
			l.told = true
			if l.side != asCaller { // what it had to keep
				err = l.answer(func() error { return l.say(&wire.Finish{Delivery: 1}) })
			}
		case m := <-l.fromHost:
			over, err = l.handle(m)
		case m := <-l.fromPeer:
			err = l.passed(m)
		}
		if err != nil || over != "" {
			return over, err
		}
	}
	return "", nil
}

// straight reports whether what it sends goes past the host.
func (l *laneEnd) straight() bool { return l.direct != nil || l.side == asSink }

// passed does what the honest node says.
func (l *laneEnd) passed(m wire.Message) error {
	d, ok := m.(*wire.Deliver)
	switch {
	case !ok:
		return nil
	case l.head.Load() != 0: // more and more
		err := l.frame(&wire.Finish{Delivery: d.Delivery})
		if l.side == asCaller {
			err = errors.Join(err, l.frame(l.next()))
		}
		return err
	case l.straight():
		l.held = d.Delivery
		return nil
	}
	return l.answer(func() error { return l.frame(&wire.Finish{Delivery: d.Delivery}) })
}

// answer emits what a delivery is answered by, and finishes it when that is done
// with.
func (l *laneEnd) answer(finish func() error) error {
	if l.worst || l.side == asSink {
		return finish()
	}
	if l.side == asCaller { // the next input needs the room of this result
		return errors.Join(finish(), l.emit())
	}
	l.emitted[l.put+1] = finish
	return l.emit()
}

// handle does what the host says. It returns how the request ended, when it
// has.
func (l *laneEnd) handle(h hostMessage) (over string, err error) {
	if h.err != nil {
		return "", h.err
	}
	switch m := h.Message.(type) {
	case *wire.Open:
		l.source = m.Task
	case *wire.Submitted:
		l.source = m.Source
		fmt.Println(readyLine)
		return "", l.emit()
	case *wire.Deliver:
		if l.side != asCaller && m.Seq == 0 { // kept, so that other requests go to others
			fmt.Println(readyLine)
			return "", nil
		}
		finish := func() error { return l.say(&wire.Finish{Delivery: m.Delivery}) }
		if l.side == asCaller && l.ends && l.relayed == plenty {
			return "", errors.Join(finish(), l.say(&wire.CloseSend{Source: l.source}))
		}
		return "", l.answer(finish)
	case *wire.Returned:
		for _, put := range m.Puts {
			if finish := l.emitted[put]; finish != nil {
				delete(l.emitted, put)
				err = errors.Join(err, finish())
			}
		}
	case *wire.Introduce:
		return "", l.meeting(l, m, h.fds)
	case *wire.Expect:
		return "", l.say(&wire.Expecting{Source: m.Source, Edge: m.Edge})
	case *wire.Direct:
		l.direct = m
	case *wire.End:
		return completed, l.say(&wire.Ended{Task: m.Task})
	case *wire.Over:
		return fmt.Sprintf("%v %s %s %s", m.Outcome, m.Stage, m.Edge, m.Text), nil
	case *wire.Refuse:
		return m.Text, nil
	}
	return "", err
}

// plenty is how many inputs are sent where the request is to complete.
const plenty = 50

// completed is what is said of a request that nothing has happened to.
const completed = "completed"

// emit sends a payload through the host.
func (l *laneEnd) emit() error {
	if l.side == asSink {
		return nil
	}
	l.put++
	l.relayed++
	l.sequence = l.relayed
	return l.say(&wire.Put{Put: l.put, Source: l.source, Flags: wire.FlagInline, Codec: 1, Size: uint64(len(l.inline)), Payload: l.inline})
}

// end waits until the request is over.
func (l *laneEnd) end() (over string, err error) {
	for over == "" && err == nil {
		select {
		case m := <-l.fromPeer:
			err = l.passed(m)
		case h := <-l.fromHost:
			over, err = l.handle(h)
		}
	}
	return over, err
}

// half is what a peer of a lane brings to it.
type half struct {
	segment      int
	frames, room *lane.Event
}

// newHalf makes a segment of this size, and the events.
func newHalf(size int64) (own *shmstore.Segment, h half, err error) {
	own, errSegment := shmstore.NewSegment("lane", size)
	h.frames, err = lane.NewEvent()
	room, errRoom := lane.NewEvent()
	if err = errors.Join(errSegment, err, errRoom); err != nil {
		return nil, h, err
	}
	h.room = room
	h.segment = own.FD()
	return own, h, nil
}

// take opens the socket that came with an introduction.
func (l *laneEnd) take(fds []int) (err error) {
	l.socket, err = peer.Open(fds[0])
	return err
}

// meet does what an honest peer does.
func (l *laneEnd) meet(m *wire.Introduce, fds []int) error {
	out, errOut := lane.Layout(m.Lane<<1|uint64(m.Side), laneBytes)
	back, errBack := lane.Layout(m.Lane<<1|uint64(1-m.Side), laneBytes)
	size := out.SenderBytes() + out.ReceiverBytes()
	own, h, err := newHalf(int64(size))
	if err := errors.Join(errOut, errBack, err, l.take(fds)); err != nil {
		return err
	}
	l.own = own
	sending, receiving := own.Bytes()[:out.SenderBytes()], own.Bytes()[out.SenderBytes():]
	out.FormatSender(sending)
	back.FormatReceiver(receiving)
	if err := l.tell(&wire.Meet{Lane: m.Lane, Capacity: laneBytes}, h.segment, h.frames.FD(), h.room.FD()); err != nil {
		return err
	}
	_, _, got, err := peer.NewReceiver(l.socket).Next()
	if err != nil {
		return err
	}
	theirs, err := shmstore.OpenSegment("lane", got[0], int64(size))
	frames, errFrames := lane.OpenEvent(got[1])
	room, errRoom := lane.OpenEvent(got[2])
	if err := errors.Join(err, errFrames, errRoom); err != nil {
		return err
	}
	l.frames = frames
	l.sender, err = lane.NewSender(out, sending, theirs.Bytes()[out.SenderBytes():], lane.Events{Own: h.room, Peer: frames}, lane.Options{})
	if err != nil {
		return err
	}
	l.receiver, err = lane.NewReceiver(back, receiving, theirs.Bytes()[:out.SenderBytes()], lane.Events{Own: h.frames, Peer: room}, lane.Options{})
	if err == nil {
		go l.receive()
	}
	return err
}

// tell sends a message on the socket pair.
func (l *laneEnd) tell(m wire.Message, fds ...int) error {
	return l.socket.Send(encode(m, fds...), fds)
}

// receive passes on what the honest node says, until that has had enough.
func (l *laneEnd) receive() {
	for {
		for {
			frame, kind, ok := l.receiver.Next()
			if !ok {
				break
			}
			m, err := wire.Parse(wire.Header{Kind: wire.Kind(kind)}, append([]byte(nil), frame...))
			if err != nil {
				panic(err)
			}
			l.fromPeer <- m
		}
		l.receiver.Advance()
		if head := l.head.Load(); head != 0 {
			l.moveHead(head)
		}
		if err := l.receiver.Wait(context.Background()); err != nil {
			return
		}
	}
}

// frame sends a message in the lane.
func (l *laneEnd) frame(m wire.Message) error {
	return l.rawFrame(lane.Kind(m.Kind()), encode(m)[wire.HeaderSize:])
}

func (l *laneEnd) rawFrame(kind lane.Kind, body []byte) error {
	return l.sender.Send(context.Background(), kind, body)
}

// next is the delivery that it would send now if it were honest.
func (l *laneEnd) next() *wire.Deliver {
	l.number++
	m := &wire.Deliver{
		Source: l.direct.PeerSource, Delivery: l.number, Edge: l.direct.PeerEdge, Flags: wire.FlagInline, Codec: 1,
		Seq: l.sequence, Size: uint64(len(l.inline)), Payload: l.inline,
	}
	l.sequence++
	return m
}

// finished waits until the honest node has finished the last that was sent.
func (l *laneEnd) finished() error {
	for {
		select {
		case m := <-l.fromPeer:
			if f, ok := m.(*wire.Finish); ok && f.Delivery == l.number {
				return nil
			}
		case h := <-l.fromHost:
			if over, err := l.handle(h); over != "" || err != nil {
				return fmt.Errorf("the request ended early: %s %w", over, err)
			}
		}
	}
}

// moveHead overwrites the head in the peer's own segment, and wakes the other.
func (l *laneEnd) moveHead(head uint64) {
	binary.NativeEndian.PutUint64(l.own.Bytes()[laneHead:], head)
	l.frames.Signal()
}

// headers overwrites whatever may be a header in the lane to the honest node,
// and wakes that.
func (l *laneEnd) headers(forged func(at uint64) uint64) error {
	const page = 4096
	for at := uint64(0); at < laneBytes; at += 8 {
		binary.NativeEndian.PutUint64(l.own.Bytes()[page+at:], forged(at))
	}
	l.frames.Signal()
	return nil
}

// memfd makes a segment that may lack its seals.
func memfd(size int64, seals int) (int, error) {
	fd, err := unix.MemfdCreate("bad", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Fallocate(fd, 0, 0, size)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	}
	return fd, err
}
