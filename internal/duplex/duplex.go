package duplex

import (
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// Options configure one side. The zero value works, and the two sides need not
// agree.
type Options struct {
	// Lane says what this side does before it parks.
	Lane lane.Options
}

// Handler is told what the peer sends. An error ends the duplex.
type Handler interface {
	// Segment is told of memory that the peer writes and that its messages
	// will name. The segment is the handler's to close.
	Segment(number uint32, mem *shmstore.Segment) error
	// Forget says that no more messages will name a segment. Both are called on
	// one goroutine, in the order in which the peer said so.
	Forget(number uint32)
	// Message is called for one message after the other, on the goroutine of Run or
	// on one that calls Look. The message is valid until it returns. A message that it
	// would have to wait for is [ErrWait], unless it may: it comes again then.
	Message(m wire.Message, mayWait bool) error
}

// Duplex is the connection of two processes.
type Duplex struct {
	conn   *peer.Conn
	socket *peer.Sender
	in     *peer.Receiver

	own, its half

	reading  sync.Mutex // held by the goroutine that receives; guards what follows
	handler  Handler    // nil: Run has not begun, or is over
	receiver *lane.Receiver
	copied   []byte    // a copy of what is being handled
	read     decoded   // messages that are used again
	waits    frame     // what Look could not handle, in copied; no body: nothing
	failed   error     // what Look failed with, for Run
	parked   time.Time // since when the peer has to wake this side

	mu       sync.Mutex // guards what follows
	sender   *lane.Sender
	packed   []byte
	backlog  []frame // frames that find no room in the lane
	bytes    int     // in the backlog
	draining bool    // a goroutine has the sender, and the backlog is not empty
	closed   bool

	hopeless  atomic.Pointer[error] // why nothing can be sent any more, though the peer is there
	listening chan struct{}         // closed when the socket has ended
	stayed    bool                  // Run has ended before the peer's end of the socket
	running   sync.WaitGroup
	closeOnce sync.Once
}

const (
	// laneBytes is the room for frames that this side sends.
	laneBytes = 256 << 10
	// backlogBytes is how much waits for a peer that does not read before it
	// is given up. Its credit bounds a peer that keeps to the rules.
	backlogBytes = 64 << 20
)

// Meet exchanges segments with the peer, and waits for it to do the same: for
// as long as its end of the connection is open. It owns the connection from here
// on, also if it fails. The id is the same on both sides, and the side is 0 on one
// of them and 1 on the other.
func Meet(conn *peer.Conn, id uint64, side uint8, opts Options) (*Duplex, error) {
	d := &Duplex{conn: conn, in: peer.NewReceiver(conn), listening: make(chan struct{}), copied: make([]byte, wire.MaxPacket)}
	if err := d.meet(id, side&1, opts); err != nil {
		d.Close()
		return nil, fmt.Errorf("meet a peer: %w", err)
	}
	return d, nil
}

// laneID tells the two lanes of a duplex apart by their senders.
func laneID(id uint64, side uint8) uint64 { return id<<1 | uint64(side) }

// half is what one side brings: its segment, and what it sleeps on.
type half struct {
	segment *shmstore.Segment
	frames  *lane.Event // its receiver, waiting for frames
	room    *lane.Event // its sender, waiting for room
}

// parts are the two parts of the segment: the lane that the side sends in, and
// the head of the one that it receives in.
func (h *half) parts(geo lane.Geometry) (sender, receiver []byte) {
	b, n := h.segment.Bytes(), geo.SenderBytes()
	return b[:n:n], b[n:]
}

func (h *half) close() {
	h.closeEvents()
	if h.segment != nil {
		h.segment.Close()
	}
}

// closeEvents ends all waits for them. It may be called again.
func (h *half) closeEvents() {
	for _, e := range []*lane.Event{h.frames, h.room} {
		if e != nil {
			_ = e.Close() // an event holds nothing that could be lost
		}
	}
}

func (d *Duplex) meet(id uint64, side uint8, opts Options) error {
	out, errOut := lane.Layout(laneID(id, side), laneBytes)
	back, errBack := lane.Layout(laneID(id, 1-side), laneBytes)
	if err := errors.Join(errOut, errBack); err != nil {
		return err
	}
	var err error
	if d.socket, err = peer.NewSender(d.conn, peer.SenderOptions{FlushTimeout: lastWords}); err != nil {
		return err
	}
	sizeBytes := int64(out.SenderBytes() + out.ReceiverBytes())
	if err := d.own.make(sizeBytes); err != nil {
		return err
	}
	sending, receiving := d.own.parts(out)
	out.FormatSender(sending)
	back.FormatReceiver(receiving)
	err = d.socket.Queue(&wire.Meet{Lane: id, Capacity: laneBytes}, d.own.segment.FD(), d.own.frames.FD(), d.own.room.FD())
	if err != nil {
		return err
	}
	faultpoint.Hit("duplex-met")
	if err := d.admit(id, sizeBytes); err != nil {
		return err
	}
	itsSending, itsReceiving := d.its.parts(out)
	d.sender, err = lane.NewSender(out, sending, itsReceiving, lane.Events{Own: d.own.room, Peer: d.its.frames}, opts.Lane)
	if err != nil {
		return err
	}
	d.receiver, err = lane.NewReceiver(back, receiving, itsSending, lane.Events{Own: d.own.frames, Peer: d.its.room}, opts.Lane)
	return err
}

// make makes this side's half.
func (h *half) make(sizeBytes int64) (err error) {
	if h.segment, err = shmstore.NewSegment("lane", sizeBytes); err != nil {
		return err
	}
	if h.frames, err = lane.NewEvent(); err != nil {
		return err
	}
	h.room, err = lane.NewEvent()
	return err
}

// admit receives the peer's half.
func (d *Duplex) admit(id uint64, sizeBytes int64) error {
	h, body, fds, err := d.in.Next()
	if err != nil {
		return err
	}
	m, err := wire.Parse(h, body)
	if err == nil {
		meet, ok := m.(*wire.Meet)
		if !ok || meet.Lane != id || meet.Capacity != laneBytes {
			err = fmt.Errorf("%w: %v %+v instead of meet for lane %x of %d bytes", wire.ErrProtocol, h.Kind, m, id, laneBytes)
		}
	}
	if err != nil {
		peer.CloseAll(fds)
		return err
	}
	return d.its.open(fds, sizeBytes)
}

// open makes a half of the descriptors that the peer sent. It owns them.
func (h *half) open(fds []int, sizeBytes int64) (err error) {
	if h.frames, err = lane.OpenEvent(fds[1]); err != nil {
		peer.CloseAll([]int{fds[0], fds[2]})
		return err
	}
	if h.room, err = lane.OpenEvent(fds[2]); err != nil {
		peer.CloseAll(fds[:1])
		return err
	}
	h.segment, err = shmstore.OpenSegment("lane", fds[0], sizeBytes)
	return err
}

// Run handles what comes until the peer is gone and nothing of what it sent is
// left, or one side breaks the rules, or Close. The error says which:
// [lane.ErrPeerGone], [lane.ErrPeer], [wire.ErrProtocol], [lane.ErrClosed],
// [ErrBacklog] or the handler's. It is called once.
func (d *Duplex) Run(h Handler) error {
	if !d.begin(2) {
		return lane.ErrClosed
	}
	go func() {
		defer d.running.Done()
		err := d.listen(h)
		close(d.listening)
		d.PeerGone(err)
	}()
	defer d.running.Done()
	err := d.receive(h)
	d.stayed = !d.Gone()
	d.stop()
	return err
}

// Stayed reports, when Run has returned, whether the peer was there still: then it is
// what it did, or this side, that has ended the duplex.
func (d *Duplex) Stayed() bool { return d.stayed }

// begin counts goroutines that Close waits for; false: it does not wait any
// more.
func (d *Duplex) begin(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.running.Add(n)
	}
	return !d.closed
}

// listen takes in segments until the socket ends. The error says why.
func (d *Duplex) listen(h Handler) error {
	defer d.in.Close()
	for {
		head, body, fds, err := d.in.Next()
		if err != nil {
			return err
		}
		m, err := wire.Parse(head, body)
		if err != nil {
			peer.CloseAll(fds)
			return err
		}
		switch m := m.(type) {
		case *wire.Segment:
			mem, err := shmstore.OpenFillingSegment("peer", fds[0], int64(m.Bytes))
			if err == nil {
				err = h.Segment(m.Segment, mem)
			}
			if err != nil {
				return err
			}
		case *wire.Forget:
			h.Forget(m.Segment)
		default:
			peer.CloseAll(fds)
			return fmt.Errorf("%w: %v on the socket of a lane", wire.ErrProtocol, m.Kind())
		}
	}
}

// receive handles the frames of the lane, but for those that Look does.
func (d *Duplex) receive(h Handler) error {
	d.reading.Lock()
	defer d.reading.Unlock()
	d.handler = h
	defer func() { d.handler = nil }()
	for {
		if err := d.handleAll(true); err != nil {
			return err
		}
		d.parked = time.Now()
		d.reading.Unlock()
		err := d.receiver.Park()
		d.reading.Lock()
		if err != nil {
			return err
		}
		d.receiver.Rouse()
		d.receiver.Slept(time.Since(d.parked))
	}
}

// Look handles what the peer sends on the goroutine that calls it, which waits for the
// peer and holds no lock: for up to some tens of microseconds, as long as that has paid
// lately, or until stop reports true. Nothing has to be woken then, in
// either process, when the peer answers. Before it handles anything it calls begin, and
// leaves it to Run when that reports false.
func (d *Duplex) Look(stop, begin func() bool) (handled bool) {
	if !d.reading.TryLock() {
		return false // another goroutine receives
	}
	defer d.reading.Unlock()
	defer func() { d.parked = time.Now() }()
	for d.handler != nil && d.waits.body == nil && d.failed == nil && !stop() {
		d.receiver.Rouse()
		if !d.receiver.Look(stop) {
			dozes, err := d.receiver.Doze()
			if err != nil {
				d.own.frames.Signal()
			}
			if dozes || err != nil {
				return handled
			}
		}
		if !handled && !begin() {
			d.own.frames.Signal()
			return false
		}
		handled = true
		if err := d.handleAll(false); err != nil {
			if !errors.Is(err, ErrWait) {
				d.failed = err
			}
			d.own.frames.Signal() // the rest is Run's
			return true
		}
	}
	return handled
}

// ErrWait is what a handler says of a message that it cannot handle without waiting.
var ErrWait = errors.New("the message has to wait")

// handleAll handles the frames that are there. When it returns nil there are none, and
// the peer wakes this side with the next.
func (d *Duplex) handleAll(mayWait bool) error {
	for {
		if d.failed != nil {
			return d.failed
		}
		if body := d.waits.body; body != nil {
			d.waits.body = nil
			if err := d.handle(d.waits.kind, body, mayWait); err != nil {
				return err
			}
		}
		for {
			frame, kind, ok := d.receiver.Next()
			if !ok {
				break
			}
			// The frame is the peer's to change while it is looked at.
			n := copy(d.copied, frame)
			faultpoint.Hit("duplex-received")
			if err := d.handle(kind, d.copied[:n], mayWait); err != nil {
				return err
			}
		}
		d.receiver.Advance()
		if cause := d.hopeless.Load(); cause != nil {
			return *cause
		}
		if dozes, err := d.receiver.Doze(); dozes || err != nil {
			return err
		}
	}
}

// handle handles one frame, whose kind is that of its message.
func (d *Duplex) handle(kind lane.Kind, body []byte, mayWait bool) error {
	k := wire.Kind(min(kind, math.MaxUint16))
	if k.Direction()&wire.ToPeer == 0 {
		return fmt.Errorf("%w: %v is not for a lane", wire.ErrProtocol, k)
	}
	m, err := d.read.parse(k, body)
	if err != nil {
		return err
	}
	err = d.handler.Message(m, mayWait)
	if errors.Is(err, ErrWait) {
		d.waits = frame{kind, body}
	}
	return err
}

// decoded are the messages that come most, for reading into again.
type decoded struct {
	deliver wire.Deliver
	finish  wire.Finish
}

func (r *decoded) parse(k wire.Kind, body []byte) (wire.Message, error) {
	if k == wire.KindDeliver {
		return &r.deliver, wire.Decode(body, &r.deliver)
	}
	if k == wire.KindFinish {
		return &r.finish, wire.Decode(body, &r.finish)
	}
	return wire.Parse(wire.Header{Kind: k}, body)
}

// Offer gives the peer a segment that messages will name. It does not wait.
func (d *Duplex) Offer(number uint32, mem *shmstore.Segment) error {
	return d.socket.Queue(&wire.Segment{Segment: number, Bytes: uint64(mem.Size())}, mem.FD())
}

// Forget says that no more messages will name a segment.
func (d *Duplex) Forget(number uint32) error {
	return d.socket.Queue(&wire.Forget{Segment: number})
}

// Listening is closed when the peer has ended its end of the socket: no more
// segments come.
func (d *Duplex) Listening() <-chan struct{} { return d.listening }

// Gone reports whether the peer has ended its end of the socket.
func (d *Duplex) Gone() bool {
	select {
	case <-d.listening:
		return true
	default:
		return d.sender.Err() != nil && !errors.Is(d.sender.Err(), lane.ErrPeer)
	}
}

// PeerGone says that the peer sends no more: Run returns when what it has sent
// is handled. The first cause counts.
func (d *Duplex) PeerGone(cause error) {
	if errors.Is(cause, io.EOF) {
		cause = errHungUp
	}
	d.receiver.Fail(cause)
	d.sender.Fail(cause)
}

var errHungUp = errors.New("it closed the connection")

// stop ends the connection, which the peer notices.
func (d *Duplex) stop() {
	d.mu.Lock()
	d.closed = true
	if d.sender != nil {
		d.sender.Close()
	}
	d.mu.Unlock()
	if d.receiver != nil {
		d.receiver.Close()
	}
	if d.socket != nil {
		_ = d.socket.Close() // sends what is queued, if the peer reads it
	}
	_ = d.conn.Close()
}

// lastWords is how long it may take to tell a peer of the last segments.
const lastWords = 100 * time.Millisecond

// Close ends the duplex, waits for Run, and gives its memory back.
func (d *Duplex) Close() {
	d.closeOnce.Do(func() {
		d.stop()
		d.own.closeEvents() // a peer can take the wake-ups that were signaled
		d.running.Wait()
		d.own.close()
		d.its.close()
	})
}
