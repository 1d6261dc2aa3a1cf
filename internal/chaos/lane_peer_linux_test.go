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
	laneBytes  = 64 << 10
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
	mayMisbehave     bool   // it may do its worst
	misbehaving    bool   // ... and does
	completes     bool   // it means to do nothing, and sees its request to the end
	sequence uint64 // of the next delivery that it sends
	number   uint32 // ... of the last

	fromHost chan hostMessage
	fromPeer chan wire.Message
	emitted  map[uint32]func() error // what follows a put
	goAhead    chan struct{}           // receives when it may do its worst
	released      chan struct{}           // closed when it may end
	head     atomic.Uint64           // what it says it has let go of; 0: the truth
	onIntroduce  func(*laneEnd, *wire.Introduce, []int) error

	// What it has met the honest node with.
	socket   *peer.Conn
	answers  *peer.Receiver // what comes by the socket
	own      *shmstore.Segment
	sender   *lane.Sender
	receiver *lane.Receiver

	sending sync.Mutex // guards what follows, and the sender
	packets uint32     // that were sent by the socket
	frames  uint64     // ... and by the lane
	framesBeforePacket  uint64     // of those, before the last packet
}

type hostMessage struct {
	wire.Message
	fds []int
	err error
}

// runBadLane is the process of a bad peer of a lane. When it has something of
// a request it says so, and goes on. When it is told to, and everything goes past
// the host, it does its worst. Then it says how its request ended, and lives on.
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
		if err = tc.do(l); err == nil || errors.Is(err, peer.ErrGone) { // the honest node may have had enough before
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

// read takes the line that lets it do its worst, and waits for the end.
func (l *laneEnd) read() {
	stdin := bufio.NewReader(os.Stdin)
	if _, err := stdin.ReadString('\n'); err == nil {
		l.goAhead <- struct{}{}
	}
	_, _ = io.Copy(io.Discard, stdin) // until it is let go
	close(l.released)
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

func (l *laneEnd) sendHost(m wire.Message) error { return l.raw(encode(m)) }

// startRole serves the stage, or calls it.
func (l *laneEnd) startRole() error {
	if l.side == asCaller {
		return l.sendHost(&wire.Submit{Source: wire.OwnSource | 1, Flags: wire.SubmitTell})
	}
	return l.sendHost(&wire.Serve{Stage: laneStage})
}

// workHonestly does what it should, until it may do its worst, the streams go past the
// host both ways, and it has a delivery that it does not finish; or until its
// request is over.
func (l *laneEnd) workHonestly(goesPast bool) (over string, err error) {
	for !goesPast || !l.mayMisbehave || !l.sendsDirect() || l.held == 0 {
		select {
		case <-l.released:
			return "", errors.New("it was let go too early")
		case <-l.goAhead:
			l.mayMisbehave = true
			if l.side != asCaller { // what it had to keep
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

// sendsDirect reports whether what it sends goes past the host.
func (l *laneEnd) sendsDirect() bool { return l.direct != nil || l.side == asSink }

// handlePeer does what the honest node says.
func (l *laneEnd) handlePeer(m wire.Message) error {
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
	case l.sendsDirect():
		l.held = d.Delivery
		return nil
	}
	return l.answer(func() error { return l.frame(&wire.Finish{Delivery: d.Delivery}) })
}

// answer emits what a delivery is answered by, and finishes it when that is done
// with.
func (l *laneEnd) answer(finish func() error) error {
	if l.misbehaving || l.side == asSink {
		return finish()
	}
	if l.side == asCaller { // the next input needs the room of this result
		return errors.Join(finish(), l.emit())
	}
	l.emitted[l.put+1] = finish
	return l.emit()
}

// handleHost does what the host says. It returns how the request ended, when it
// has.
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
		if l.side != asCaller && m.Seq == 0 { // kept, so that other requests go to others
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

// handshake does what an honest peer does.
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
func (l *laneEnd) wake() { _ = l.packet(nil) } // of an honest node that is gone nothing more comes

// sendSocket sends a message by the socket.
func (l *laneEnd) sendSocket(m wire.Message, fds ...int) error { return l.bytes(encode(m, fds...), fds...) }

// bytes sends bytes by the socket.
func (l *laneEnd) bytes(b []byte, fds ...int) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	return l.packet(b, fds...)
}

// packet, with sending held, sends a packet behind the frames that were sent.
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

// receive passes on what the honest node says, until that has had enough.
func (l *laneEnd) receive() {
	for {
		l.receiver.Rouse()
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
		if head := l.head.Load(); head != 0 { // it stays awake, for the honest node to look at the head
			l.moveHead(head)
			if l.socket.HungUp() {
				return
			}
			runtime.Gosched()
			continue
		}
		if !l.receiver.Doze() {
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

// passFromPeer passes on a message of the honest node's.
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

// frameAfter sends bytes in the lane that come after so many more packets than were sent.
func (l *laneEnd) frameAfter(more uint32, b []byte) error {
	for {
		l.sending.Lock()
		l.frames++ // a wake-up comes after it
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

// headers overwrites whatever may be a header in the lane to the honest node,
// and wakes that.
func (l *laneEnd) headers(forged func(at uint64) uint64) error {
	const page = 4096
	for at := uint64(0); at < laneBytes; at += 8 {
		binary.NativeEndian.PutUint64(l.own.Bytes()[page+at:], forged(at))
	}
	return l.sendSocket(&wire.Forget{Segment: 77})
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
