package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// sideEnv names the side that a bad peer of a lane takes.
const sideEnv = "OMNIBUS_CHAOS_SIDE"

// The sides, seen from the bad peer.
const (
	asStage    = "as a stage"                // an honest node calls it
	asSink     = "as a stage without output" // ... and it sends nothing on the direct path
	asCaller   = "as a caller"               // an honest node serves the stage
	readyLine  = "ready"
	laneStage  = "echo"
	laneWindow = 8
	laneBytes  = 64 << 10
)

// laneEnd is a bad peer's end: its connection to the host, its lanes to an
// honest node, and its progress.
type laneEnd struct {
	peerEnd
	side   string
	inline []byte
	put    uint32

	source       uint32 // the number of its task or its request
	relayed      uint64 // deliveries that it has sent through the host
	direct       *wire.Direct
	held         uint32 // a delivery of the honest node that it does not finish; 0: none yet
	mayMisbehave bool   // the test has allowed the bad case
	misbehaving  bool   // the bad case is running
	completes    bool   // its case is tolerated, and its request completes
	sequence     uint64 // sequence of the next delivery that it sends
	number       uint32 // number of the last delivery that it sent

	fromHost    chan hostMessage
	fromPeer    chan wire.Message
	emitted     map[uint32]func() error // by put: runs when the put is returned
	goAhead     chan struct{}           // receives when the test allows the bad case
	released    chan struct{}           // closed when the process may end
	head        atomic.Uint64           // the forged head of its incoming lane; 0: the true one
	onIntroduce func(*laneEnd, *wire.Introduce, []int) error

	// The connection to the honest node, after the handshake.
	socket   *peer.Conn
	answers  *peer.Receiver // messages that come by the socket
	own      *shmstore.Segment
	sender   *lane.Sender
	receiver *lane.Receiver

	sending            sync.Mutex // guards the fields below, and the sender
	packets            uint32     // sent by the socket
	frames             uint64     // sent by the lane
	framesBeforePacket uint64     // frames sent before the last packet
}

type hostMessage struct {
	wire.Message
	fds []int
	err error
}

// runBadLane is the process of a bad peer of a lane. It prints readyLine when it
// takes part in a request. When the test allows it, and all streams are direct, it
// runs the bad case. Then it prints how its request ended, and stays alive until
// its standard input ends.
func runBadLane() error {
	l := &laneEnd{
		peerEnd: peerEnd{path: os.Getenv(node.EnvSocket)}, side: os.Getenv(sideEnv), inline: make([]byte, 16),
		fromHost: make(chan hostMessage), fromPeer: make(chan wire.Message), emitted: make(map[uint32]func() error),
		goAhead: make(chan struct{}, 1), released: make(chan struct{}),
	}
	tc := badLanes[os.Getenv(caseEnv)]
	l.completes = tc.said == completed
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
	if err := l.startRole(); err != nil {
		return err
	}
	if l.onIntroduce = tc.meet; l.onIntroduce == nil {
		l.onIntroduce = (*laneEnd).handshake
	}
	over, err := l.workHonestly(tc.do != nil)
	if err == nil && over == "" {
		l.misbehaving = true
		if err = tc.do(l); err == nil || errors.Is(err, peer.ErrGone) { // the honest node may have closed the connection before
			over, err = l.awaitOver()
		}
	}
	if err != nil {
		return err
	}
	fmt.Println(strings.ReplaceAll(over, "\n", " "))
	<-l.released
	return nil
}

// read waits for the line that allows the bad case, then for the end of standard input.
func (l *laneEnd) read() {
	stdin := bufio.NewReader(os.Stdin)
	if _, err := stdin.ReadString('\n'); err == nil {
		l.goAhead <- struct{}{}
	}
	_, _ = io.Copy(io.Discard, stdin) // until the test closes it
	close(l.released)
}

// listen passes the host's messages to fromHost, until the connection ends.
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

func (l *laneEnd) sendHost(m wire.Message) error { return l.raw(encode(m)) }

// startRole serves the stage, or submits a request to it.
func (l *laneEnd) startRole() error {
	if l.side == asCaller {
		return l.sendHost(&wire.Submit{Source: wire.OwnSource | 1, Flags: wire.SubmitTell})
	}
	return l.sendHost(&wire.Serve{Stage: laneStage})
}

// workHonestly follows the protocol until the bad case is allowed, the streams in
// both directions are direct, and it holds a delivery that it does not finish; or
// until its request is over.
func (l *laneEnd) workHonestly(goesPast bool) (over string, err error) {
	for !goesPast || !l.mayMisbehave || !l.sendsDirect() || l.held == 0 {
		select {
		case <-l.released:
			return "", errors.New("standard input ended too early")
		case <-l.goAhead:
			l.mayMisbehave = true
			if l.side != asCaller { // the first delivery, which it held until now
				err = l.answer(func() error { return l.sendHost(&wire.Finish{Delivery: 1}) })
			}
		case m := <-l.fromHost:
			over, err = l.handleHost(m)
		case m := <-l.fromPeer:
			err = l.handlePeer(m)
		}
		if err != nil || over != "" {
			return over, err
		}
	}
	return "", nil
}

// sendsDirect reports whether its deliveries take the direct path.
func (l *laneEnd) sendsDirect() bool { return l.direct != nil || l.side == asSink }

// handlePeer handles a message of the honest node.
func (l *laneEnd) handlePeer(m wire.Message) error {
	d, ok := m.(*wire.Deliver)
	switch {
	case !ok:
		return nil
	case l.head.Load() != 0: // fills the lane
		err := l.frame(&wire.Finish{Delivery: d.Delivery})
		if l.side == asCaller {
			err = errors.Join(err, l.frame(l.next()))
		}
		return err
	case l.sendsDirect():
		l.held = d.Delivery
		return nil
	}
	return l.answer(func() error { return l.frame(&wire.Finish{Delivery: d.Delivery}) })
}

// answer emits the answer to a delivery, and finishes the delivery when the answer
// is returned.
func (l *laneEnd) answer(finish func() error) error {
	if l.misbehaving || l.side == asSink {
		return finish()
	}
	if l.side == asCaller { // the next input needs the window of this result
		return errors.Join(finish(), l.emit())
	}
	l.emitted[l.put+1] = finish
	return l.emit()
}

// handleHost handles a message of the host. It returns how the request ended, if it
// has ended.
func (l *laneEnd) handleHost(h hostMessage) (over string, err error) {
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
		if l.side != asCaller && m.Seq == 0 { // held, so that other requests go to other processes
			fmt.Println(readyLine)
			return "", nil
		}
		finish := func() error { return l.sendHost(&wire.Finish{Delivery: m.Delivery}) }
		if l.side == asCaller && l.completes && l.relayed == plenty {
			return "", errors.Join(finish(), l.sendHost(&wire.CloseSend{Source: l.source}))
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
		return "", l.onIntroduce(l, m, h.fds)
	case *wire.Expect:
		return "", l.sendHost(&wire.Expecting{Source: m.Source, Edge: m.Edge})
	case *wire.Direct:
		l.direct = m
	case *wire.End:
		return completed, l.sendHost(&wire.Ended{Task: m.Task})
	case *wire.Over:
		return fmt.Sprintf("%v %s %s %s", m.Outcome, m.Stage, m.Edge, m.Text), nil
	case *wire.Refuse:
		return m.Text, nil
	}
	return "", err
}

// plenty is the number of inputs of a request that completes.
const plenty = 50

// completed is the result of a request that was not harmed.
const completed = "completed"

// emit sends a payload through the host.
func (l *laneEnd) emit() error {
	if l.side == asSink {
		return nil
	}
	l.put++
	l.relayed++
	l.sequence = l.relayed
	return l.sendHost(&wire.Put{Put: l.put, Source: l.source, Flags: wire.FlagInline, Codec: 1, Size: uint64(len(l.inline)), Payload: l.inline})
}

// awaitOver waits until the request is over.
func (l *laneEnd) awaitOver() (over string, err error) {
	for over == "" && err == nil {
		select {
		case m := <-l.fromPeer:
			err = l.handlePeer(m)
		case h := <-l.fromHost:
			over, err = l.handleHost(h)
		}
	}
	return over, err
}

// openSocket opens the socket that came with an introduction.
func (l *laneEnd) openSocket(fds []int) (err error) {
	l.socket, err = peer.Open(fds[0])
	return err
}

// handshake exchanges lane segments with the honest node, as an honest peer does.
func (l *laneEnd) handshake(_ *wire.Introduce, fds []int) error {
	geo, errLayout := lane.Layout(0, laneBytes)
	n := geo.SenderBytes()
	own, err := shmstore.NewSegment("lane", int64(n+geo.ReceiverBytes()))
	if err := errors.Join(errLayout, err, l.openSocket(fds)); err != nil {
		return err
	}
	l.own = own
	sending, receiving := own.Bytes()[:n:n], own.Bytes()[n:]
	geo.FormatSender(sending)
	geo.FormatReceiver(receiving)
	if err := l.sendSocket(&wire.Lane{Capacity: laneBytes}, own.FD()); err != nil {
		return err
	}
	l.answers = peer.NewReceiver(l.socket)
	_, _, got, err := l.answers.Next()
	if err != nil {
		return err
	}
	theirs, err := shmstore.OpenSegment("lane", got[0], own.Size())
	if err != nil {
		return err
	}
	l.sender, err = lane.NewSender(geo, sending, theirs.Bytes()[n:], l.wake)
	if err != nil {
		return err
	}
	l.receiver, err = lane.NewReceiver(geo, receiving, theirs.Bytes()[:n], lane.Options{})
	if err == nil {
		go l.receive()
	}
	return err
}

// wake wakes the honest node as an honest peer does.
func (l *laneEnd) wake() { _ = l.packet(nil) } // fails if the honest node is gone

// sendSocket sends a message by the socket.
func (l *laneEnd) sendSocket(m wire.Message, fds ...int) error {
	return l.bytes(encode(m, fds...), fds...)
}

// bytes sends bytes by the socket.
func (l *laneEnd) bytes(b []byte, fds ...int) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	return l.packet(b, fds...)
}

// packet, with sending held, sends a packet that is ordered after the frames that were sent.
func (l *laneEnd) packet(b []byte, fds ...int) error {
	if l.frames != l.framesBeforePacket {
		b = append(encode(&wire.After{Frames: l.frames}), b...)
	}
	err := l.socket.Send(b, fds)
	if err == nil {
		l.packets++
		l.framesBeforePacket = l.frames
	}
	return err
}

// receive passes the honest node's messages to fromPeer, until the connection ends.
func (l *laneEnd) receive() {
	for {
		l.receiver.EndSleep()
		for {
			frame, _, ok := l.receiver.Next()
			if !ok {
				break
			}
			for frame = bytes.Clone(frame); len(frame) > 0; {
				h, body, rest, err := wire.Next(frame)
				if err != nil {
					panic(err)
				}
				l.passFromPeer(h, body)
				frame = rest
			}
		}
		l.receiver.Advance()
		if head := l.head.Load(); head != 0 { // it stays awake, so that the honest node reads the head
			l.moveHead(head)
			if l.socket.HungUp() {
				return
			}
			runtime.Gosched()
			continue
		}
		if !l.receiver.PrepareSleep() {
			if l.receiver.Err() != nil {
				return
			}
			continue
		}
		h, body, fds, err := l.answers.Next()
		if err != nil {
			return
		}
		process.CloseAll(fds)
		l.passFromPeer(h, bytes.Clone(body))
	}
}

// passFromPeer passes a message of the honest node to fromPeer.
func (l *laneEnd) passFromPeer(h wire.Header, body []byte) {
	m, err := wire.Parse(h, body)
	if err != nil {
		panic(err)
	}
	l.fromPeer <- m
}

// frame sends a message in the lane.
func (l *laneEnd) frame(m wire.Message) error { return l.rawFrame(encode(m)) }

// rawFrame sends bytes in the lane.
func (l *laneEnd) rawFrame(b []byte) error { return l.frameAfter(0, b) }

// frameAfter sends bytes in the lane, with a packet count that is more above the packets sent.
func (l *laneEnd) frameAfter(more uint32, b []byte) error {
	for {
		l.sending.Lock()
		l.frames++ // before the send: a wake-up packet that TrySend sends comes after the frame
		err := l.sender.TrySend(lane.Kind(l.packets+more), b)
		if err != nil {
			l.frames--
		}
		l.sending.Unlock()
		if !errors.Is(err, lane.ErrFull) {
			return err
		}
		runtime.Gosched()
	}
}

// rawMessage is a message of any kind.
func rawMessage(kind wire.Kind, body []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(wire.HeaderSize+len(body)))
	b = binary.LittleEndian.AppendUint16(b, uint16(kind))
	return append(append(b, 0, 0), body...)
}

// next returns the delivery that an honest peer would send next.
func (l *laneEnd) next() *wire.Deliver {
	l.number++
	m := &wire.Deliver{
		Source: l.direct.PeerSource, Delivery: l.number, Edge: l.direct.PeerEdge, Flags: wire.FlagInline, Codec: 1,
		Seq: l.sequence, Size: uint64(len(l.inline)), Payload: l.inline,
	}
	l.sequence++
	return m
}

// finished waits until the honest node has finished the last delivery that was sent.
func (l *laneEnd) finished() error {
	for {
		select {
		case m := <-l.fromPeer:
			if f, ok := m.(*wire.Finish); ok && f.Delivery == l.number {
				return nil
			}
		case h := <-l.fromHost:
			if over, err := l.handleHost(h); over != "" || err != nil {
				return fmt.Errorf("the request ended early: %s %w", over, err)
			}
		}
	}
}

// moveHead overwrites the head in the peer's own segment.
func (l *laneEnd) moveHead(head uint64) {
	binary.NativeEndian.PutUint64(l.own.Bytes()[laneHead:], head)
}

// headers overwrites every possible header in the lane to the honest node, and
// wakes the honest node.
func (l *laneEnd) headers(forged func(at uint64) uint64) error {
	const page = 4096
	for at := uint64(0); at < laneBytes; at += 8 {
		binary.NativeEndian.PutUint64(l.own.Bytes()[page+at:], forged(at))
	}
	return l.sendSocket(&wire.Forget{Segment: 77})
}

// memfd makes a segment with the given seals, which may be none.
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
