package node

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// rawPeer is a peer of a node that sends arbitrary bytes, in any order.
type rawPeer struct {
	conn      *peer.Conn
	own, its  *shmstore.Segment
	lane      *lane.Sender
	packets   uint32 // sent by the socket
	frames    uint64 // sent in the lane
	announced uint64 // frames before the last packet
}

const rawLaneBytes = 64 << 10

// meetRaw exchanges lanes with the node, as a peer does.
func meetRaw(conn *peer.Conn) (_ *rawPeer, err error) {
	p := &rawPeer{conn: conn}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	geo, err := lane.Layout(0, rawLaneBytes)
	if err != nil {
		return nil, err
	}
	n := geo.SenderBytes()
	sizeBytes := int64(n + geo.ReceiverBytes())
	if p.own, err = shmstore.NewSegment("raw", sizeBytes); err != nil {
		return nil, err
	}
	geo.FormatSender(p.own.Bytes()[:n:n])
	geo.FormatReceiver(p.own.Bytes()[n:])
	if err := p.sendMessage(&wire.Lane{Capacity: rawLaneBytes}, p.own.FD()); err != nil {
		return nil, err
	}
	in := peer.NewReceiver(conn)
	defer in.Close()
	h, _, fds, err := in.Next()
	if err != nil || h.Kind != wire.KindLane {
		process.CloseAll(fds)
		return nil, errors.Join(err, wire.ErrProtocol)
	}
	if p.its, err = shmstore.OpenSegment("raw", fds[0], sizeBytes); err != nil {
		return nil, err
	}
	p.lane, err = lane.NewSender(geo, p.own.Bytes()[:n:n], p.its.Bytes()[n:], p.wake)
	return p, err
}

// wake wakes the node as a peer does.
func (p *rawPeer) wake() { _ = p.packet(nil) } // fails if the node is gone

// packet sends a packet by the socket, ordered after the frames that were sent.
func (p *rawPeer) packet(b []byte, fds ...int) error {
	if p.frames != p.announced {
		head, err := wire.Append(nil, &wire.After{Frames: p.frames}, 0)
		if err != nil {
			return err
		}
		b = append(head, b...)
	}
	err := p.conn.Send(b, fds)
	if err == nil {
		p.packets++
		p.announced = p.frames
	}
	return err
}

// sendMessage sends a message by the socket.
func (p *rawPeer) sendMessage(m wire.Message, fds ...int) error {
	b, err := wire.Append(nil, m, len(fds))
	if err != nil {
		return err
	}
	return p.packet(b, fds...)
}

// sendFrame puts a frame with arbitrary bytes into the lane. It reports false when the lane takes
// none.
func (p *rawPeer) sendFrame(after uint32, b []byte) bool {
	p.frames++ // a wake-up comes after it
	err := p.lane.TrySend(lane.Kind(after), b)
	if err != nil {
		p.frames--
	}
	return err == nil
}

func (p *rawPeer) close() {
	_ = p.conn.Close()
	for _, s := range []*shmstore.Segment{p.own, p.its} {
		if s != nil {
			s.Close()
		}
	}
}

// A step of a script is one byte for its kind, and seven bytes of numbers.
const (
	rawDeliver  = iota // source, flags, sequence, segment, offset, size
	rawFinish          // delivery, flags, code
	rawRelease         // delivery
	rawStreamed        // source, edge, deliveries
	rawFrame           // kind, and a body of up to four bytes
	rawSegment         // number, and whether the next four bytes are its size
	rawForget          // number
	rawPoke            // offset, and the value to write
	rawAfter           // frames before a packet
	rawEarly           // how many packets before a frame are missing, and up to four bytes
	rawSteps
)

const (
	rawStepBytes = 8
	rawMostSteps = 64
)

func rawStep(op byte, numbers ...byte) []byte {
	return append([]byte{op}, append(numbers, make([]byte, rawStepBytes-1-len(numbers))...)...)
}

// do executes a step. It reports false when nothing more can be sent.
func (p *rawPeer) do(s []byte, task uint32, mem *shmstore.Segment) bool {
	// Small numbers stand for the existing task.
	source := func(b byte) uint32 {
		if b < 128 {
			return task
		}
		return uint32(b)
	}
	message := func(m wire.Message) bool {
		b, err := wire.Append(nil, m, 0)
		return err != nil || p.sendFrame(p.packets, b)
	}
	switch s[0] % rawSteps {
	case rawDeliver:
		m := &wire.Deliver{
			Source: source(s[1]), Delivery: uint32(s[3]) + 1, Seq: uint64(s[3]), Flags: s[2], Segment: uint32(s[4]),
			Offset: uint64(s[5]) << 8, Size: uint64(s[6]) << 8, Codec: 1, Edge: uint16(s[7]),
		}
		if m.Flags&wire.FlagInline != 0 {
			m.Payload = make([]byte, s[6])
			m.Size = uint64(len(m.Payload))
		}
		return message(m)
	case rawFinish:
		return message(&wire.Finish{Delivery: uint32(s[1]), Flags: s[2], Code: wire.Code(s[3])})
	case rawRelease:
		return message(&wire.Release{Delivery: uint32(s[1])})
	case rawStreamed:
		return message(&wire.Streamed{Source: source(s[1]), Edge: uint16(s[2]), Deliveries: uint64(s[3])})
	case rawFrame:
		body := s[3 : 3+min(int(s[7]), 4)]
		b := binary.LittleEndian.AppendUint32(nil, uint32(wire.HeaderSize+len(body)))
		return p.sendFrame(p.packets, append(append(b, s[1], s[2], 0, 0), body...))
	case rawSegment:
		m := &wire.Segment{Segment: uint32(s[1]), Bytes: uint64(mem.Size())}
		if s[2] != 0 {
			m.Bytes = uint64(binary.LittleEndian.Uint32(s[3:]))
		}
		return p.sendMessage(m, mem.FD()) == nil
	case rawForget:
		return p.sendMessage(&wire.Forget{Segment: uint32(s[1])}) == nil
	case rawPoke:
		at := int(binary.LittleEndian.Uint16(s[1:])) * 8 % len(p.own.Bytes())
		binary.LittleEndian.PutUint32(p.own.Bytes()[at:], binary.LittleEndian.Uint32(s[3:]))
		return p.sendMessage(&wire.Forget{Segment: unknownSource}) == nil // wakes the node
	case rawAfter:
		return p.sendMessage(&wire.After{Frames: uint64(binary.LittleEndian.Uint16(s[1:]))}) == nil
	case rawEarly:
		return p.sendFrame(p.packets+uint32(s[1]), s[2:2+min(int(s[7]), 4)])
	}
	return true
}

// hostile is a node whose peers execute scripts.
type hostile struct {
	*attached
	mem   *shmstore.Segment
	peers uint32
}

// openFilesBut are the open files of this process, without memory of a certain name.
func openFilesBut(t testing.TB, name string) (all []string) {
	t.Helper()
	const folder = "/proc/self/fd/"
	files, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		to, _ := os.Readlink(folder + f.Name()) // the descriptor of the folder is closed
		if name == "" || !strings.HasPrefix(to, "/memfd:"+name) {
			all = append(all, to)
		}
	}
	return all
}

// tasks counts the node's tasks.
func (h *hostile) tasks() int {
	tasks, _ := h.link.work.list()
	return len(tasks)
}

// play has a peer execute a script as one end of a request's streams. It requires that the node
// keeps nothing of the peer and still serves requests.
func (h *hostile) play(t testing.TB, script []byte) {
	t.Helper()
	r, err := h.bus.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := emit(t, r, []byte{0}).Finish(nil); err != nil {
		t.Fatal(err)
	}
	task, cmd := h.task(t), sleepingProcess(t)
	h.peers++
	node := testPeerNode + h.peers
	raw, err := meetRaw(introduceTo(t, h.link, node, cmd))
	if err != nil {
		t.Fatal(err)
	}
	p := h.link.peers.receiver(node)
	if err := h.link.handle(&wire.Expect{Source: task.id, Peer: node}, nil); err != nil {
		t.Fatal(err)
	}
	h.openSilentDirect(t, node, task)
	for i := 0; i < rawMostSteps && len(script) >= rawStepBytes; i++ {
		if !raw.do(script[:rawStepBytes], task.id, h.mem) {
			break
		}
		script = script[rawStepBytes:]
	}
	raw.close()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(testbus.Patience):
		t.Fatal("the node does not notice that its peer is gone")
	}
	if p.mu.Lock(); p.err == nil {
		t.Error("the connection to a peer ended without an error")
	}
	p.mu.Unlock()
	r.Close()
	testbus.Await(t, func() bool {
		holds, _, shown := p.account.Sizes()
		return holds+shown == 0 && h.tasks() == 0 && task.stage.Bus.Stats().Live == 0
	})
	h.link.peers.mu.Lock()
	delete(h.link.peers.senders, node)
	delete(h.link.peers.receivers, node)
	h.link.peers.mu.Unlock()
	other, err := h.bus.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := emit(t, other, []byte("hello")).Finish(nil); err != nil {
		t.Fatal(err)
	}
	other.Close()
	testbus.Await(t, func() bool { return h.tasks() == 0 })
	_ = cmd.Wait() // it was killed
}

// FuzzPeer has a peer of a node send arbitrary messages, in frames of the lane, in place of frames,
// and by the socket. The node may give up the peer, must keep nothing of it, and must serve its
// host and other requests.
func FuzzPeer(f *testing.F) {
	const inline = byte(wire.FlagInline)
	f.Add(slices.Concat(rawStep(rawDeliver, 0, inline, 1, 0, 0, 200), rawStep(rawDeliver, 0, inline, 2, 0, 0, 1), rawStep(rawFinish, 1), rawStep(rawStreamed, 0, 0, 3)))
	f.Add(slices.Concat(rawStep(rawSegment, 1), rawStep(rawDeliver, 0, 0, 1, 1, 1, 8), rawStep(rawDeliver, 0, 0, 3, 1, 1, 8), rawStep(rawForget, 1)))
	f.Add(slices.Concat(rawStep(rawSegment, 1), rawStep(rawDeliver, 0, 0, 2, 1, 255, 255), rawStep(rawDeliver, 0, 0, 1, 1, 0, 1)))
	f.Add(slices.Concat(rawStep(rawDeliver, 0, 0, 1, 9, 0, 1), rawStep(rawStreamed, 0, 0, 9)))
	f.Add(slices.Concat(rawStep(rawDeliver, 0, inline, 1, 0, 0, 255), rawStep(rawFinish, 1, byte(wire.FinishKeep)), rawStep(rawRelease, 1), rawStep(rawRelease, 1)))
	f.Add(slices.Concat(rawStep(rawDeliver, 200, inline, 1), rawStep(rawDeliver, 0, inline, 1, 0, 0, 0, 1), rawStep(rawStreamed, 200, 0, 1)))
	f.Add(slices.Concat(rawStep(rawFrame, byte(wire.KindStreamed), 0, 1, 2, 3, 4, 4)))
	f.Add(slices.Concat(rawStep(rawFrame, byte(wire.KindSegment), 0, 1, 0, 0, 0, 4)))
	f.Add(slices.Concat(rawStep(rawSegment, 1, 1, 0, 0, 1), rawStep(rawSegment, 1), rawStep(rawSegment, 1)))
	f.Add(slices.Concat(rawStep(rawPoke, 8, 0, 255, 255, 255, 255)))
	f.Add(slices.Concat(rawStep(rawDeliver, 0, inline, 1), rawStep(rawAfter, 1), rawStep(rawAfter, 9)))
	f.Add(slices.Concat(rawStep(rawEarly, 1, 1, 2, 3, 4, 0, 4), rawStep(rawForget, 1)))

	a := attach(f, 4, func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(make([]byte, 64*len(d.Bytes()))) })
	mem, err := shmstore.NewSegment("hostile", 1<<16)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(mem.Close)
	h := &hostile{attached: a, mem: mem}
	h.play(f, nil)
	const spare = "omnibus-large object" // the node keeps it for the next large payload
	files := len(openFilesBut(f, spare))
	f.Fuzz(func(t *testing.T, script []byte) {
		h.play(t, script)
		testbus.Await(t, func() bool { return len(openFilesBut(t, spare)) <= files })
	})
}
