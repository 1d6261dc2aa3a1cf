package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// laned returns a connection with lanes.
func laned(t testing.TB) (a, b *Conn) {
	t.Helper()
	a, b = pair(t)
	toB, fdA := mustShare(t, a)
	toA, fdB := mustShare(t, b)
	for _, err := range []error{a.OpenLane(toA, fdB, lane.Options{}), b.OpenLane(toB, fdA, lane.Options{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return a, b
}

// mustShare makes one side's memory, with a descriptor for the peer.
func mustShare(t testing.TB, c *Conn) (m *wire.Lane, fd int) {
	t.Helper()
	m, own, err := c.ShareLane()
	if err != nil {
		t.Fatal(err)
	}
	if fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	return m, fd
}

// served records the numbers of the finishes that a Receiver has handled.
type served struct {
	in    *Receiver
	came  chan uint32
	fail  uint32 // the handler fails on this number
	ended chan error
}

var errServed = errors.New("not this one")

func serve(conn *Conn, fail uint32) *served {
	s := &served{in: NewReceiver(conn), came: make(chan uint32, 1<<14), fail: fail, ended: make(chan error, 1)}
	go func() {
		err := s.in.Serve(s.handle)
		s.in.Close()
		s.ended <- err
	}()
	return s
}

func (s *served) handle(h wire.Header, body []byte, fds []int) error {
	process.CloseAll(fds)
	if h.Kind != wire.KindFinish {
		return nil
	}
	var m wire.Finish
	if err := wire.Decode(body, &m); err != nil {
		return err
	}
	if m.Delivery == s.fail {
		return errServed
	}
	s.came <- m.Delivery
	return nil
}

// sleeps waits until the receiving side announces by the lane that it sleeps.
func sleeps(from *Conn) {
	for {
		if out, _ := from.out.sleeping(); out != nil {
			return
		}
		runtime.Gosched()
	}
}

// never is the stop of a Poll that is not stopped.
func never() bool { return false }

// always is the begin of a goroutine on which no other depends.
func always() bool { return true }

// TestLanesKeepTheOrder: messages come in the order in which they were queued, by the lane or the
// socket: small ones, those with descriptors and those too large for a frame, to a receiver that
// sleeps now and then, while other goroutines poll.
func TestLanesKeepTheOrder(t *testing.T) {
	const n = 8_000
	a, b := laned(t)
	s := newSender(t, a, SenderOptions{})
	rec := serve(b, 0)
	stop := pollLoop(rec.in, 2, never)
	defer stop()
	null := devNull(t)
	random := rand.New(rand.NewPCG(1, 2))
	large := string(make([]byte, wire.MaxText))
	before := a.out.frames
	for i := range uint32(n) {
		m := &wire.Finish{Delivery: i + 1}
		switch random.IntN(50) {
		case 0:
			if err := s.Queue(&wire.Offer{Segment: 1, Bytes: 1}, int(null.Fd())); err != nil {
				t.Fatal(err)
			}
		case 1:
			m.Text = large
		case 2:
			sleeps(a)
		}
		if err := s.Queue(m); err != nil {
			t.Fatal(err)
		}
	}
	for want := range uint32(n) {
		if got := <-rec.came; got != want+1 { // a lost wake-up hangs here
			t.Fatalf("message %d came as number %d", got, want+1)
		}
	}
	if a.out.frames == before || a.out.sent == 0 {
		t.Errorf("%d packets by the lane and %d by the socket, want some each", a.out.frames, a.out.sent)
	}
}

// pollLoop starts n goroutines that poll until stop is called, which waits for them.
func pollLoop(r *Receiver, n int, enough func() bool) (stop func()) {
	over := make(chan struct{})
	var looking sync.WaitGroup
	for range n {
		looking.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					r.Poll(enough, always)
					runtime.Gosched() // another goroutine may receive
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		close(over)
		looking.Wait()
	})
}

// TestPollBesideServe: each message is handled once, in order, by Serve or a Poll, while other
// goroutines poll and the peer parks in between.
func TestPollBesideServe(t *testing.T) {
	const n = 500
	a, b := laned(t)
	s := newSender(t, a, SenderOptions{})
	rec := serve(b, 0)
	stop := pollLoop(rec.in, 3, func() bool { return len(rec.came) > 0 })
	for i := range uint32(n) {
		if err := s.Queue(&wire.Finish{Delivery: i + 1}); err != nil {
			t.Fatal(err)
		}
		if got := <-rec.came; got != i+1 {
			t.Fatalf("message %d came as number %d", got, i+1)
		}
	}
	stop()
	a.Close()
	if err := <-rec.ended; !errors.Is(err, io.EOF) {
		t.Errorf("the end is %v, want %v", err, io.EOF)
	}
}

// TestPollLeavesMessagesToServe: Serve handles the messages of a Poll whose begin reports false.
func TestPollLeavesMessagesToServe(t *testing.T) {
	a, b := laned(t)
	rec := serve(b, 0)
	sleeps(a)
	found := make(chan bool, 1)
	go func() {
		for !rec.in.Poll(never, func() bool { found <- true; return false }) && len(found) == 0 {
			runtime.Gosched()
		}
	}()
	s := newSender(t, a, SenderOptions{})
	for i := uint32(1); len(found) == 0; i++ {
		if err := s.Queue(&wire.Finish{Delivery: i}); err != nil {
			t.Fatal(err)
		}
		if got := <-rec.came; got != i {
			t.Fatalf("message %d came as number %d", got, i)
		}
	}
}

// TestPollHandlerError: an error of the handler ends Serve, also if Poll has called the handler.
func TestPollHandlerError(t *testing.T) {
	for range 20 {
		a, b := laned(t)
		s := newSender(t, a, SenderOptions{})
		rec := serve(b, 2)
		stop := pollLoop(rec.in, 1, never)
		for i := range uint32(3) {
			if err := s.Queue(&wire.Finish{Delivery: i + 1}); err != nil {
				t.Fatal(err)
			}
		}
		if err := <-rec.ended; !errors.Is(err, errServed) {
			t.Errorf("the end is %v, want %v", err, errServed)
		}
		stop()
		if n := len(rec.came); n != 1 {
			t.Errorf("%d messages handled, want the one before the failed one", n)
		}
	}
}

// TestFramesOfDeadPeerAreReceived: frames that a peer has left in the lane come before its end, also
// if it died between a frame and the packet that would have woken the receiver.
func TestFramesOfDeadPeerAreReceived(t *testing.T) {
	a, b := laned(t)
	rec := serve(b, 0)
	sleeps(a)
	geo, err := lane.Layout(0, laneBytes)
	if err != nil {
		t.Fatal(err)
	}
	sending, _ := halves(geo, a.mem.own)
	_, receiving := halves(geo, a.mem.theirs)
	out, err := lane.NewSender(geo, sending, receiving, func() {})
	if err != nil {
		t.Fatal(err)
	}
	const n = 10
	for i := range uint32(n) {
		p, err := wire.Append(nil, &wire.Finish{Delivery: i + 1}, 0)
		if err == nil {
			err = out.TrySend(0, p)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	if err := <-rec.ended; !errors.Is(err, io.EOF) || len(rec.came) != n {
		t.Errorf("%d messages of %d, and the end is %v, want %v", len(rec.came), n, err, io.EOF)
	}
}

// TestLaneProtocolViolations: a peer that breaks the protocol of the lane causes ErrProtocol, and the connection ends.
func TestLaneProtocolViolations(t *testing.T) {
	after := func(frames ...uint64) []byte {
		var p []byte
		for _, n := range frames {
			p, _ = wire.Append(p[:0], &wire.After{Frames: n}, 0) // it breaks no bound
		}
		return p
	}
	for name, lie := range map[string]func(a *Conn){
		"a packet after frames that are not there": func(a *Conn) { sendRaw(t, a, after(7), nil) },
		"a packet after no frame":                  func(a *Conn) { sendRaw(t, a, after(0), nil) },
		"no packet":                                func(a *Conn) { sendRaw(t, a, []byte("garbage, and more of it"), nil) },
		"a frame that is none": func(a *Conn) {
			binary.NativeEndian.PutUint64(a.mem.own.Bytes()[4096:], 1<<40)
			sendRaw(t, a, after(1), nil)
		},
		"a frame with garbage": func(a *Conn) {
			if err := a.out.lane.Load().TrySend(0, []byte("garbage, and more of it")); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := laned(t)
			rec := serve(b, 0)
			sleeps(a)
			a.out.frames++ // as if the frame were valid
			lie(a)
			if err := <-rec.ended; !errors.Is(err, wire.ErrProtocol) {
				t.Errorf("the end is %v, want %v", err, wire.ErrProtocol)
			}
		})
	}
}

// TestCorruptLaneHead: the sending side ends the connection to a peer that corrupts the head of the
// lane, although the peer sends no invalid packet: lost frames would never come.
func TestCorruptLaneHead(t *testing.T) {
	lie := func(t *testing.T, b *Conn) {
		geo, err := lane.Layout(0, laneBytes)
		if err != nil {
			t.Fatal(err)
		}
		_, receiving := halves(geo, b.mem.own)
		binary.NativeEndian.PutUint64(receiving[64:], 1<<40)
	}
	ends := func(t *testing.T, s *Sender, a, b *Conn) {
		readAll(t, a, func(wire.Header, []byte, []int) {})
		if err := s.Err(); !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("the end is %v, want %v", err, wire.ErrProtocol)
		}
		if !b.HungUp() {
			t.Error("the peer does not see the end")
		}
	}
	t.Run("while there is space", func(t *testing.T) {
		a, b := laned(t)
		s := newSender(t, a, SenderOptions{})
		lie(t, b)
		var err error
		for err == nil {
			err = s.Queue(&wire.Finish{Delivery: 1})
		}
		if !errors.Is(err, wire.ErrProtocol) || !errors.Is(s.Err(), wire.ErrProtocol) || !b.HungUp() {
			t.Errorf("a message is %v, the sender's end %v, want %v, and that both ends see it", err, s.Err(), wire.ErrProtocol)
		}
		ends(t, s, a, b)
	})
	t.Run("while messages wait for space", func(t *testing.T) {
		a, b := laned(t)
		s := newSender(t, a, SenderOptions{})
		for s.Blocked() == 0 { // the lane is full first, and then the socket
			if err := s.Queue(&wire.Finish{Delivery: 1}); err != nil {
				t.Fatal(err)
			}
		}
		lie(t, b)
		buf := make([]byte, wire.MaxPacket)
		var err error
		for err == nil {
			_, _, _ = tryReceive(b, buf) // makes space; there may be no packet yet
			err = s.Queue(&wire.Finish{Delivery: 1})
		}
		ends(t, s, a, b)
	})
}

// TestReceiveAfterHangUp: packets that the peer has sent, by the lane and the socket, are received
// even if this side ends the connection before it receives the first.
func TestReceiveAfterHangUp(t *testing.T) {
	a, b := laned(t)
	s := newSender(t, a, SenderOptions{})
	const n = 10
	for i := range uint32(n) {
		m := &wire.Finish{Delivery: i + 1}
		if i%3 == 0 {
			m.Text = string(make([]byte, wire.MaxText))
		}
		if err := s.Queue(m); err != nil {
			t.Fatal(err)
		}
	}
	b.HangUp()
	rec := serve(b, 0)
	if err := <-rec.ended; !errors.Is(err, io.EOF) || len(rec.came) != n {
		t.Errorf("%d messages of %d, and the end is %v, want %v", len(rec.came), n, err, io.EOF)
	}
}

// TestLaneRefuses: memory that is no valid lane is refused, and its descriptor closed.
func TestLaneRefuses(t *testing.T) {
	checkNoLeak(t, func() {
		for name, c := range map[string]struct {
			shared   bool
			capacity uint32
			again    bool
			short    bool
		}{
			"before this side's":  {capacity: laneBytes},
			"of another capacity": {shared: true, capacity: 2 * laneBytes},
			"a second one":        {shared: true, capacity: laneBytes, again: true},
			"of another size":     {shared: true, capacity: laneBytes, short: true},
		} {
			a, b, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			_, fd := mustShare(t, b)
			if c.short {
				process.CloseAll([]int{fd})
				if fd, err = unix.MemfdCreate("short", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
					t.Fatal(err)
				}
			}
			if c.shared {
				_, own := mustShare(t, a)
				process.CloseAll([]int{own})
			}
			m := &wire.Lane{Capacity: c.capacity}
			if c.again {
				another, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
				if err == nil {
					err = a.OpenLane(m, another, lane.Options{})
				}
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := a.ShareLane(); !errors.Is(err, wire.ErrProtocol) {
					t.Errorf("%s: shared again: %v, want %v", name, err, wire.ErrProtocol)
				}
			}
			if err := a.OpenLane(m, fd, lane.Options{}); err == nil {
				t.Errorf("%s was taken", name)
			}
			for _, conn := range []*Conn{a, b} {
				for range 2 {
					conn.mem.release()
				}
				conn.Close()
			}
		}
	})
}

// TestOrder: a packet waits for the frames before it, and a frame for the packets before it.
func TestOrder(t *testing.T) {
	a, b := laned(t)
	in := NewReceiver(b)
	finish := func(id uint32) []byte {
		p, err := wire.Append(nil, &wire.Finish{Delivery: id}, 0)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	frame := func(id uint32) {
		if sent, err := a.out.trySendFrame(finish(id)); !sent || err != nil {
			t.Fatalf("frame %d: %v, %v", id, sent, err)
		}
	}
	packet := func(id uint32) []byte {
		p := append([]byte(nil), a.out.head()...)
		a.out.countPacket()
		return append(p, finish(id)...)
	}
	want := func(ids ...uint32) {
		t.Helper()
		for _, id := range ids {
			p, _, ok := in.order.next(b.in)
			if !ok || !bytes.Equal(p, finish(id)) {
				t.Fatalf("%d did not come next, but %x, %v", id, p, ok)
			}
		}
		if p, _, ok := in.order.next(b.in); ok {
			t.Fatalf("%x came too early", p)
		}
	}
	frame(1)
	frame(2)
	if err := in.order.addPacket(packet(3), nil, true); err != nil {
		t.Fatal(err)
	}
	want(1, 2, 3)
	late := packet(4)
	frame(5)
	want()
	if in.order.noHeldFrame() {
		t.Error("doze reports false while a frame waits for a packet")
	}
	if err := in.order.addPacket(late, nil, true); err != nil {
		t.Fatal(err)
	}
	want(4, 5)
}

// TestReceivedFrameIsCopied: the peer cannot change a received frame by writing to the lane.
func TestReceivedFrameIsCopied(t *testing.T) {
	a, b := laned(t)
	in := NewReceiver(b)
	defer in.Close()
	frame := mustAppend(t, &wire.Finish{Delivery: 1})
	if err := a.out.lane.Load().TrySend(0, frame); err != nil {
		t.Fatal(err)
	}
	p, _, ok := in.order.next(b.in)
	if !ok || !bytes.Equal(p, frame) {
		t.Fatalf("%x came, %t", p, ok)
	}
	memory := a.mem.own.Bytes()
	at := bytes.Index(memory, frame)
	if at < 0 {
		t.Fatal("the frame is not in the peer's memory")
	}
	for i := range frame {
		memory[at+i]++
	}
	if !bytes.Equal(p, frame) {
		t.Errorf("the peer has changed the frame to %x", p)
	}
}

// TestMisplacedFrame: a frame that names fewer packets before it than have come is a protocol error, and ends
// the connection. A frame that names more waits for them, also if the numbers of packets wrap.
func TestMisplacedFrame(t *testing.T) {
	const last = packetNumbers - 1
	for name, tc := range map[string]struct {
		packets uint32 // that have come
		claimed lane.Kind
		comes   bool
		broken  bool
	}{
		"as many":                  {packets: 3, claimed: 3, comes: true},
		"one more":                 {packets: 3, claimed: 4},
		"one less":                 {packets: 3, claimed: 2, broken: true},
		"none":                     {packets: 3, claimed: 0, broken: true},
		"the first of a new round": {packets: last, claimed: 0},
		"the last of a round":      {packets: 0, claimed: last, broken: true},
		"no number of a packet":    {packets: 3, claimed: packetNumbers + 3, broken: true},
		"the largest number":       {packets: 3, claimed: lane.MaxKind, broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := laned(t)
			in := NewReceiver(b)
			defer in.Close()
			in.order.packets = tc.packets
			if err := a.out.lane.Load().TrySend(tc.claimed, mustAppend(t, &wire.Finish{Delivery: 1})); err != nil {
				t.Fatal(err)
			}
			if _, _, comes := in.order.next(b.in); comes != tc.comes {
				t.Errorf("the frame comes: %t, want %t", comes, tc.comes)
			}
			if err := in.order.violation(b.in); errors.Is(err, wire.ErrProtocol) != tc.broken {
				t.Errorf("error %v, want one: %t", err, tc.broken)
			}
		})
	}
}

// TestLargestPacketBehindFrames: a packet of the largest size by the socket arrives also after a
// frame, although its sender has to announce the frame.
func TestLargestPacketBehindFrames(t *testing.T) {
	for name, send := range map[string]func(*Conn, []byte) error{
		"at once": func(c *Conn, p []byte) error {
			if sent, err := c.trySendPacket(p, nil); !sent {
				return fmt.Errorf("not sent: %w", err)
			}
			return nil
		},
		"with time to wait": func(c *Conn, p []byte) error { return c.Send(p, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := laned(t)
			in := NewReceiver(b)
			if sent, err := a.out.trySendFrame(mustAppend(t, &wire.Finish{Delivery: 1})); !sent || err != nil {
				t.Fatalf("a frame: %v, %v", sent, err)
			}
			if err := send(a, largestPacket(t)); err != nil {
				t.Fatal(err)
			}
			for want := range uint32(3) {
				h, body, _, err := in.Next()
				var m wire.Finish
				if err == nil {
					err = wire.Decode(body, &m)
				}
				if err != nil || m.Delivery != want+1 {
					t.Fatalf("%v %d came, want %d: %v", h.Kind, m.Delivery, want+1, err)
				}
			}
		})
	}
}

// largestPacket is a packet of the largest size: finishes, from number 2 on.
func largestPacket(t *testing.T) []byte {
	t.Helper()
	empty := len(mustAppend(t, &wire.Finish{}))
	var p []byte
	for i := uint32(2); len(p) < wire.MaxPacket; i++ {
		n := wire.MaxPacket - len(p) - empty
		if n > wire.MaxText {
			n = wire.MaxText - empty // leaves space for the header of the last one
		}
		p = append(p, mustAppend(t, &wire.Finish{Delivery: i, Text: strings.Repeat("x", n)})...)
	}
	if len(p) != wire.MaxPacket {
		t.Fatalf("a packet of %d bytes, want %d", len(p), wire.MaxPacket)
	}
	return p
}

func mustAppend(t *testing.T, m wire.Message) []byte {
	t.Helper()
	p, err := wire.Append(nil, m, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
