package peer

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// laneBytes is the room for the packets that one side leaves in shared memory. A packet
// takes a quarter of it at most: larger ones go by the socket.
const laneBytes = 64 << 10

// laneMemory is what the two sides of a connection share: each writes to its own, and
// reads the peer's.
type laneMemory struct {
	own, its *shmstore.Segment
	left     atomic.Int32 // of its users, the Sender and the Receiver
}

// leave is called once by each of the two users, at its end.
func (m *laneMemory) leave() {
	if m.left.Add(1) < 2 {
		return
	}
	for _, mem := range []*shmstore.Segment{m.own, m.its} {
		if mem != nil {
			mem.Close()
		}
	}
}

// ShareLane makes this side's memory of the lanes beside the socket, and the message that
// the peer is to be sent with the descriptor, which stays the connection's. It is called
// once, by the goroutine that receives, or before there is one.
func (c *Conn) ShareLane() (m *wire.Lane, fd int, err error) {
	if c.mem.own != nil {
		return nil, -1, errLaneTwice
	}
	geo, err := lane.Layout(0, laneBytes)
	if err != nil {
		return nil, -1, err
	}
	own, err := shmstore.NewSegment("lane", int64(geo.SenderBytes()+geo.ReceiverBytes()))
	if err != nil {
		return nil, -1, fmt.Errorf("memory for the packets of a connection: %w", err)
	}
	sending, receiving := halves(geo, own)
	geo.FormatSender(sending)
	geo.FormatReceiver(receiving)
	c.mem.own = own
	return &wire.Lane{Capacity: laneBytes}, own.FD(), nil
}

var errLaneTwice = protocolError("each side sends the memory of its lane once, and opens the other's after that")

// halves are the two parts of a segment: the lane that its side sends in, and the page of
// the one that it receives in.
func halves(geo lane.Geometry, mem *shmstore.Segment) (sending, receiving []byte) {
	b, n := mem.Bytes(), geo.SenderBytes()
	return b[:n:n], b[n:]
}

// OpenLane takes the peer's memory, which ends in a descriptor that is given up. From here
// on packets go by the lanes. The goroutine that receives calls it, once, when this side's
// memory has been sent to the peer. An error is [wire.ErrProtocol], or the system's.
func (c *Conn) OpenLane(m *wire.Lane, fd int, opts lane.Options) error {
	faultpoint.Hit("peer-opened")
	geo, err := lane.Layout(0, laneBytes)
	switch {
	case err != nil:
	case c.mem.own == nil || c.mem.its != nil:
		err = errLaneTwice
	case m.Capacity != laneBytes:
		err = protocolError("a lane of %d bytes: it has %d", m.Capacity, laneBytes)
	}
	if err != nil {
		process.CloseAll([]int{fd})
		return err
	}
	if c.mem.its, err = shmstore.OpenSegment("lane", fd, int64(geo.SenderBytes()+geo.ReceiverBytes())); err != nil {
		return err
	}
	sending, receiving := halves(geo, c.mem.own)
	itsSending, itsReceiving := halves(geo, c.mem.its)
	if c.in, err = lane.NewReceiver(geo, receiving, itsSending, opts); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	out, err := lane.NewSender(geo, sending, itsReceiving, c.wake)
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	c.out.lane.Store(out)
	return nil
}

// wake wakes the peer by a packet that says nothing else.
func (c *Conn) wake() {
	// Where the socket has no room it has packets, which wake the peer too. That the peer
	// is gone is for the goroutine that receives to find out.
	_, _ = c.bySocket(nil, nil)
}

// outgoing is the lane that this side sends in. Only the goroutine that sends uses it.
type outgoing struct {
	lane   atomic.Pointer[lane.Sender] // nil: all goes by the socket
	sent   uint32                      // packets by the socket, modulo packetNumbers
	frames uint64                      // by the lane
	told   uint64                      // of those, before the last packet by the socket
	after  []byte
}

// byLane leaves a packet in shared memory, unless the peer sleeps or there is no room.
func (o *outgoing) byLane(p []byte) (sent bool, err error) {
	out := o.lane.Load()
	if out == nil {
		return false, nil
	}
	if sleeping, _ := o.sleeping(); sleeping != nil {
		return false, nil
	}
	faultpoint.Hit("peer-before-frame")
	o.frames++ // a wake-up comes after it
	err = out.TrySend(lane.Kind(o.sent), p)
	faultpoint.Hit("peer-frame")
	if err == nil {
		return true, nil
	}
	o.frames--
	if errors.Is(err, lane.ErrFull) || errors.Is(err, lane.ErrTooLarge) {
		return false, nil
	}
	return false, fmt.Errorf("%w: %w", wire.ErrProtocol, err)
}

// sleeping is the lane of a peer that sleeps, and the number of its sleep; nil: it does not.
func (o *outgoing) sleeping() (out *lane.Sender, sleep uint32) {
	if out = o.lane.Load(); out == nil {
		return nil, 0
	}
	sleep, sleeps := out.ReceiverSleeps()
	if !sleeps {
		return nil, 0
	}
	return out, sleep
}

// head is what a packet by the socket begins with.
func (o *outgoing) head() []byte {
	if o.frames == o.told {
		return nil
	}
	o.after, _ = wire.Append(o.after[:0], &wire.After{Frames: o.frames}, 0) // it breaks no bound
	return o.after
}

// wentBySocket counts a packet.
func (o *outgoing) wentBySocket() {
	o.sent = (o.sent + 1) % packetNumbers
	o.told = o.frames
}
