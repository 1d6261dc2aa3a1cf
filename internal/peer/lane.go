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

// laneBytes is the capacity of one direction of the lane. A packet takes a quarter of it
// at most: larger ones go by the socket.
const laneBytes = 64 << 10

// laneMemory is the shared memory of a connection: each side writes to its own segment,
// and reads the peer's.
type laneMemory struct {
	own, theirs *shmstore.Segment
	released    atomic.Int32 // calls of release
}

// release is called once by each of the two users when it ends. The second call gives the
// memory back.
func (m *laneMemory) release() {
	if m.released.Add(1) < 2 {
		return
	}
	for _, mem := range []*shmstore.Segment{m.own, m.theirs} {
		if mem != nil {
			mem.Close()
		}
	}
}

// ShareLane makes this side's memory of the lane. It returns the message for the peer and the
// descriptor to send with it, which belongs to the connection. It is called once, by the
// goroutine that receives, or before that exists.
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

// halves are the two parts of a side's segment: the lane that the side sends in, and the
// receiver's page of the lane that it receives from.
func halves(geo lane.Geometry, mem *shmstore.Segment) (sending, receiving []byte) {
	b, n := mem.Bytes(), geo.SenderBytes()
	return b[:n:n], b[n:]
}

// OpenLane maps the peer's memory; it owns the descriptor. From then on packets go by the
// lane. The goroutine that receives calls it, once, when this side's memory has been sent to
// the peer. The error is [wire.ErrProtocol], or one of the system.
func (c *Conn) OpenLane(m *wire.Lane, fd int, opts lane.Options) error {
	faultpoint.Hit("peer-opened")
	geo, err := lane.Layout(0, laneBytes)
	switch {
	case err != nil:
	case c.mem.own == nil || c.mem.theirs != nil:
		err = errLaneTwice
	case m.Capacity != laneBytes:
		err = protocolError("a lane of %d bytes: it has %d", m.Capacity, laneBytes)
	}
	if err != nil {
		process.CloseAll([]int{fd})
		return err
	}
	if c.mem.theirs, err = shmstore.OpenSegment("lane", fd, int64(geo.SenderBytes()+geo.ReceiverBytes())); err != nil {
		return err
	}
	sending, receiving := halves(geo, c.mem.own)
	theirSending, theirReceiving := halves(geo, c.mem.theirs)
	if c.in, err = lane.NewReceiver(geo, receiving, theirSending, opts); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	out, err := lane.NewSender(geo, sending, theirReceiving, c.wake)
	if err != nil {
		return fmt.Errorf("%w: %w", wire.ErrProtocol, err)
	}
	c.out.lane.Store(out)
	return nil
}

// wake wakes the peer by an empty packet.
func (c *Conn) wake() {
	// If the socket has no space it has packets, which wake the peer too. The goroutine that
	// receives finds out that the peer is gone.
	_, _ = c.trySendPacket(nil, nil)
}

// outgoing is the state of the packets that this side sends. Only the goroutine that sends
// uses it.
type outgoing struct {
	lane      atomic.Pointer[lane.Sender] // nil: all packets go by the socket
	sent      uint32                      // packets by the socket, modulo packetNumbers
	frames    uint64                      // by the lane
	announced uint64                      // the frames before the last packet by the socket
	headBuf   []byte
}

// trySendFrame writes a packet to the lane, unless the peer sleeps or there is no space.
func (o *outgoing) trySendFrame(p []byte) (sent bool, err error) {
	out := o.lane.Load()
	if out == nil {
		return false, nil
	}
	if sleeping, _ := o.sleeping(); sleeping != nil {
		return false, nil
	}
	faultpoint.Hit("peer-before-frame")
	o.frames++ // before TrySend, which may wake the peer by a packet that names the number of frames
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

// sleeping is the lane of a peer that sleeps, and the number of its sleep; nil: the peer is awake.
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

// head is the message at the start of a packet by the socket: how many frames come before the
// packet. It is nil if the peer knows that number.
func (o *outgoing) head() []byte {
	if o.frames == o.announced {
		return nil
	}
	o.headBuf, _ = wire.Append(o.headBuf[:0], &wire.After{Frames: o.frames}, 0) // it breaks no bound
	return o.headBuf
}

// countPacket counts a packet by the socket.
func (o *outgoing) countPacket() {
	o.sent = (o.sent + 1) % packetNumbers
	o.announced = o.frames
}
