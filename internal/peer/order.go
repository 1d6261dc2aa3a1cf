package peer

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// packetOrder puts the frames of the lane and the packets of the socket into the order in which
// the peer has sent them. A frame has the number of packets that its sender had sent by the
// socket before it, and such a packet the number of frames before it.
type packetOrder struct {
	copied  []byte // a frame, which is the peer's to change
	frames  uint64 // how many have come
	packets uint32 // how many have come by the socket, modulo packetNumbers
	ahead   frame  // comes after a packet that has not come yet
	early   packet // comes after frames that have not come yet
	after   uint64 // how many frames come before early
}

// frame is a frame in the lane.
type frame struct {
	body    []byte
	after   lane.Kind // how many packets come before it
	present bool
}

// packetNumbers is how many numbers a frame has for the packets before it.
const packetNumbers = 1 << 31

// next returns the packet that comes next in the order, if it has come. It is valid until the
// next call.
func (o *packetOrder) next(in *lane.Receiver) (p []byte, fds []int, ok bool) {
	for {
		for o.early.buf != nil && o.after == o.frames {
			p, fds = o.early.buf, o.early.fds
			o.early = packet{}
			o.packets = (o.packets + 1) % packetNumbers
			if len(p) > 0 { // an empty packet only wakes this side
				return p, fds, true
			}
		}
		if in == nil {
			return nil, nil, false
		}
		if p, ok = o.frame(in); !ok || len(p) > 0 {
			return p, nil, ok
		}
	}
}

// frame returns a copy of the next frame, if it comes next in the order.
func (o *packetOrder) frame(in *lane.Receiver) (p []byte, ok bool) {
	if !o.ahead.present {
		body, kind, ok := in.Next()
		if !ok {
			return nil, false
		}
		o.ahead = frame{body, kind, true}
	}
	if o.ahead.after != lane.Kind(o.packets) {
		return nil, false
	}
	o.copied = append(o.copied[:0], o.ahead.body...)
	faultpoint.Hit("peer-received")
	o.ahead = frame{}
	o.frames++
	in.Advance()
	return o.copied, true
}

// misplaced reports whether the number of the next frame is invalid, or names a packet before the last that has come.
// Fewer packets than half of the numbers are on the way at a time.
func (o *packetOrder) misplaced() bool {
	behind := (o.packets - uint32(o.ahead.after)) % packetNumbers
	return o.ahead.after >= packetNumbers || behind > 0 && behind < packetNumbers/2
}

// violation is the error of a peer that breaks the protocol, or nil. The caller calls it when next
// has returned no packet.
func (o *packetOrder) violation(in *lane.Receiver) error {
	if in == nil {
		return nil
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("receive packet: %w: %w", wire.ErrProtocol, err)
	}
	if o.ahead.present && o.misplaced() {
		return protocolError("a frame comes after packet %d, and %d have come", o.ahead.after, o.packets)
	}
	if o.early.buf != nil { // the frames before it were published before it was sent
		return protocolError("a packet comes after frame %d, and %d have come", o.after, o.frames)
	}
	return nil
}

// addPacket adds a packet that has come by the socket.
func (o *packetOrder) addPacket(p []byte, fds []int, lanes bool) error {
	if lanes {
		h, body, rest, err := wire.Next(p)
		if err == nil && h.Kind == wire.KindAfter {
			var m wire.After
			if err = wire.Decode(body, &m); err == nil && m.Frames <= o.after {
				err = protocolError("a packet comes after frame %d, and one before it after frame %d", m.Frames, o.after)
			}
			o.after, p = m.Frames, rest
		}
		if err != nil {
			process.CloseAll(fds)
			return fmt.Errorf("receive packet: %w", err)
		}
	}
	o.early = packet{buf: p, fds: fds}
	return nil
}

// noHeldFrame reports whether no frame waits for a packet before it.
func (o *packetOrder) noHeldFrame() bool { return !o.ahead.present }

// doze announces by the lane that this side sleeps. It returns false if there is a frame to
// receive, or the lane has ended.
func (o *packetOrder) doze(in *lane.Receiver) bool {
	if in == nil || o.ahead.present { // the packet before the frame was sent, and wakes this side
		return true
	}
	in.EndSleep()
	return in.PrepareSleep()
}

func (o *packetOrder) discard() {
	process.CloseAll(o.early.fds)
	o.early = packet{}
}
