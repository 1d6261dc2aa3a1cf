package peer

import (
	"bytes"
	"errors"
	"io"
	"os"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// backlog is how many bytes wait for the peer to read.
func backlog(s *Sender) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

func newSender(t testing.TB, conn *Conn, opts SenderOptions) *Sender {
	t.Helper()
	s, err := NewSender(conn, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// blocked makes a Sender wait for its peer, which has not read any message yet,
// and returns how many messages it has queued: the last one waits.
func blocked(t *testing.T, s *Sender) (queued uint32) {
	t.Helper()
	filler := &wire.Call{Method: "fill", Arguments: make([]byte, wire.MaxPiece)}
	for ; backlog(s) == 0; queued++ {
		filler.Token = queued
		if err := s.Queue(filler); err != nil {
			t.Fatal(err)
		}
	}
	for s.Blocked() == 0 {
		runtime.Gosched() // until the goroutine waits
	}
	return queued
}

// readAll reads all messages until the connection ends.
func readAll(t *testing.T, conn *Conn, each func(h wire.Header, body []byte, fds []int)) {
	t.Helper()
	r := NewReceiver(conn)
	for {
		h, body, fds, err := r.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		each(h, body, fds)
		process.CloseAll(fds)
	}
}

// TestSenderIdle receives a message right after Queue has returned.
func TestSenderIdle(t *testing.T) {
	a, b := pair(t)
	s := newSender(t, a, SenderOptions{})
	for i := range uint32(10) {
		if err := s.Queue(&wire.Release{Delivery: i}); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 100)
		n, _, err := tryReceive(b, buf)
		if err != nil {
			t.Fatalf("no packet was sent: %v", err)
		}
		var m wire.Release
		if err := wire.Decode(buf[wire.HeaderSize:n], &m); err != nil || m.Delivery != i {
			t.Errorf("received %+v, %v; want delivery %d", m, err, i)
		}
	}
	if s.Blocked() != 0 || backlog(s) != 0 {
		t.Errorf("Blocked %v, Backlog %d; want nothing", s.Blocked(), backlog(s))
	}
}

func tryReceive(c *Conn, buf []byte) (n, flags int, err error) {
	controlErr := c.raw.Control(func(fd uintptr) {
		n, _, flags, _, err = unix.Recvmsg(int(fd), buf, nil, unix.MSG_DONTWAIT)
	})
	return n, flags, errors.Join(controlErr, err)
}

// TestSenderOrder queues from several goroutines while the peer reads.
func TestSenderOrder(t *testing.T) {
	queueFromSeveral(t, func(s *Sender, _ uint32, m wire.Message) error { return s.Queue(m) })
}

// queueFromSeveral queues from several goroutines, and checks the received order.
func queueFromSeveral(t *testing.T, queue func(s *Sender, producer uint32, m wire.Message) error) {
	const producers, each = 4, 3000
	a, b := pair(t)
	s := newSender(t, a, SenderOptions{})
	var wg sync.WaitGroup
	for p := range uint32(producers) {
		wg.Go(func() {
			for i := range uint32(each) {
				if err := queue(s, p, &wire.Finish{Delivery: i, Text: string(rune('a' + p))}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	go func() {
		wg.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		a.Close()
	}()
	wantInOrder(t, b, producers, each)
}

// wantInOrder reads the messages of the producers until the end, and checks their order.
func wantInOrder(t *testing.T, b *Conn, producers rune, each uint32) {
	t.Helper()
	next := map[string]uint32{}
	var m wire.Finish
	readAll(t, b, func(_ wire.Header, body []byte, _ []int) {
		if err := wire.Decode(body, &m); err != nil {
			t.Error(err)
		}
		if m.Delivery != next[m.Text] {
			t.Errorf("producer %s: message %d, want %d", m.Text, m.Delivery, next[m.Text])
		}
		next[m.Text] = m.Delivery + 1
	})
	for p := range producers {
		if n := next[string('a'+p)]; n != each {
			t.Errorf("producer %c: %d messages arrived, want %d", 'a'+p, n, each)
		}
	}
}

// TestSenderBatches queues small messages while the peer does not read: they
// must come in as few packets as they fit into.
func TestSenderBatches(t *testing.T) {
	const messages = 20000
	a, b := pair(t)
	s := newSender(t, a, SenderOptions{})
	fillers := blocked(t, s)
	size := 0
	for i := range uint32(messages) {
		m := &wire.Release{Delivery: i}
		if err := s.Queue(m); err != nil {
			t.Fatal(err)
		}
		size = messageSizeWith(t, m, 0)
	}
	go func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		a.Close()
	}()
	buf := make([]byte, wire.MaxPacket)
	var packets, gotFillers, next uint32
	for {
		n, _, err := b.Receive(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		packets++
		for rest := buf[:n]; len(rest) > 0; {
			var h wire.Header
			var body []byte
			if h, body, rest, err = wire.Next(rest); err != nil {
				t.Fatal(err)
			}
			if h.Kind == wire.KindCall {
				gotFillers++
				continue
			}
			var m wire.Release
			if err := wire.Decode(body, &m); err != nil || m.Delivery != next {
				t.Fatalf("delivery %d, %v; want %d", m.Delivery, err, next)
			}
			next++
		}
	}
	if next != messages || gotFillers != fillers {
		t.Errorf("%d messages and %d fillers arrived, want %d and %d", next, gotFillers, messages, fillers)
	}
	if most := fillers + uint32(messages*size/wire.MaxPacket) + 2; packets > most {
		t.Errorf("%d packets, want at most %d", packets, most)
	}
}

// TestSenderBacklog fills the queue for a peer that does not read, and then reads
// the accepted messages.
func TestSenderBacklog(t *testing.T) {
	const bound = 4 * wire.MaxPacket
	a, b := pair(t)
	s := newSender(t, a, SenderOptions{BacklogBytes: bound})
	accepted := blocked(t, s)
	filler := &wire.Call{Method: "fill", Arguments: make([]byte, wire.MaxPiece)}
	for {
		filler.Token = accepted
		err := s.Queue(filler)
		if errors.Is(err, ErrBacklog) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		accepted++
	}
	// Small messages still fit where a filler does not.
	small := &wire.Call{Method: "fill"}
	for {
		small.Token = accepted
		if s.Queue(small) != nil {
			break
		}
		accepted++
	}
	if n, least := backlog(s), bound-messageSizeWith(t, small, 0); n > bound || n <= least {
		t.Errorf("Backlog %d, want more than %d and up to %d", n, least, bound)
	}
	file := devNull(t)
	checkNoLeak(t, func() {
		long := &wire.Offer{}
		if err := s.Queue(long, int(file.Fd())); !errors.Is(err, ErrBacklog) {
			t.Errorf("Queue when it is full: %v, want ErrBacklog", err)
		}
	})
	if s.Blocked() == 0 {
		t.Error("not Blocked although the peer does not read")
	}
	go func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		a.Close()
	}()
	var next uint32
	readAll(t, b, func(_ wire.Header, body []byte, _ []int) {
		var m wire.Call
		if err := wire.Decode(body, &m); err != nil || m.Token != next {
			t.Errorf("message %d, %v; want %d", m.Token, err, next)
		}
		next++
	})
	if next != accepted {
		t.Errorf("%d messages arrived, want the %d that were accepted", next, accepted)
	}
	if s.Blocked() != 0 || backlog(s) != 0 {
		t.Errorf("Blocked %v, Backlog %d; want nothing", s.Blocked(), backlog(s))
	}
}

// TestSenderDescriptors queues descriptors that the caller closes at once, some
// to be sent directly and some to wait.
func TestSenderDescriptors(t *testing.T) {
	checkNoLeak(t, func() {
		a, b, err := Pair()
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		s := newSender(t, a, SenderOptions{})
		const messages = 30
		queue := func(i uint32) {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := s.Queue(&wire.Segment{Segment: i}, int(f.Fd())); err != nil {
				t.Fatal(err)
			}
		}
		queue(0)
		blocked(t, s)
		for i := range uint32(messages - 1) {
			queue(i + 1)
		}
		go func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			a.Close()
		}()
		var next uint32
		readAll(t, b, func(h wire.Header, body []byte, fds []int) {
			if h.Kind != wire.KindSegment {
				return
			}
			var m wire.Segment
			if err := wire.Decode(body, &m); err != nil || m.Segment != next {
				t.Errorf("segment %d, %v; want %d", m.Segment, err, next)
			}
			next++
			var st unix.Stat_t
			if err := unix.Fstat(fds[0], &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
				t.Errorf("segment %d: mode %o, %v; want a device", m.Segment, st.Mode, err)
			}
		})
		if next != messages {
			t.Errorf("%d segments arrived, want %d", next, messages)
		}
	})
}

// TestSenderPostpones finds no space for a message when the next one comes.
func TestSenderPostpones(t *testing.T) {
	a, b := pair(t)
	s := newSender(t, a, SenderOptions{})
	attempt := a.sending.do
	first := true
	a.sending.do = func(fd uintptr) bool {
		if !first {
			return attempt(fd)
		}
		first = false
		if err := s.Queue(&wire.Forget{Segment: 2}); err != nil {
			t.Error(err)
		}
		a.sending.err = unix.EAGAIN
		return true
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	checkNoLeak(t, func() {
		if err := s.Queue(&wire.Segment{Segment: 1}, int(file.Fd())); err != nil {
			t.Fatal(err)
		}
		file.Close()
		r := NewReceiver(b)
		for _, want := range []wire.Kind{wire.KindSegment, wire.KindForget} {
			h, _, fds, err := r.Next()
			if err != nil || h.Kind != want {
				t.Fatalf("received %v, %v; want %v", h.Kind, err, want)
			}
			process.CloseAll(fds)
		}
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}

// TestSenderDescriptorBound queues descriptors for a peer that does not read.
func TestSenderDescriptorBound(t *testing.T) {
	a, b := pair(t)
	file := devNull(t)
	checkNoLeak(t, func() {
		s := newSender(t, a, SenderOptions{})
		blocked(t, s)
		accepted := 0
		for ; accepted <= maxBacklogDescriptors; accepted++ {
			if err := s.Queue(&wire.Segment{}, int(file.Fd())); err != nil {
				if !errors.Is(err, ErrBacklog) {
					t.Fatal(err)
				}
				break
			}
		}
		if accepted != maxBacklogDescriptors {
			t.Errorf("%d descriptors were accepted, want %d", accepted, maxBacklogDescriptors)
		}
		b.Close()
		if err := s.Close(); !errors.Is(err, ErrGone) {
			t.Errorf("Close: %v, want ErrGone", err)
		}
	})
}

// TestPacket gathers messages until they do not fit, by their descriptors or their
// bytes. A message that does not fit, or is invalid, does not change the packet.
func TestPacket(t *testing.T) {
	segment, call := &wire.Segment{Segment: 1}, &wire.Call{Arguments: bytes.Repeat([]byte("x"), 40000)}
	for name, c := range map[string]struct {
		message wire.Message
		fds     []int
		most    int
	}{
		"descriptors": {segment, []int{7}, wire.MaxDescriptors},
		"bytes":       {call, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPacket()
			defer p.recycle()
			size := messageSizeWith(t, c.message, len(c.fds))
			want := func(messages int) {
				t.Helper()
				if len(p.buf) != messages*size || len(p.fds) != messages*len(c.fds) {
					t.Errorf("%d bytes and %d descriptors, want those of %d messages", len(p.buf), len(p.fds), messages)
				}
			}
			for n := range c.most {
				if fits, err := p.add(c.message, c.fds); !fits || err != nil {
					t.Fatalf("message %d: %v, %v", n, fits, err)
				}
			}
			want(c.most)
			if fits, err := p.add(c.message, c.fds); fits || err != nil {
				t.Errorf("one more: %v, %v", fits, err)
			}
			want(c.most)
			if _, err := p.add(&wire.Serve{Stage: "\xff"}, nil); !errors.Is(err, wire.CodeInvalid) {
				t.Errorf("an invalid message: %v", err)
			}
			want(c.most)
		})
	}
}

func messageSizeWith(t *testing.T, m wire.Message, descriptors int) int {
	t.Helper()
	b, err := wire.Append(nil, m, descriptors)
	if err != nil {
		t.Fatal(err)
	}
	return len(b)
}

// TestReceiverRefuses receives packets whose descriptors do not match their
// messages.
func TestReceiverRefuses(t *testing.T) {
	file := devNull(t)
	encode := func(m wire.Message, descriptors int) []byte {
		b, err := wire.Append(nil, m, descriptors)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	two := append(encode(&wire.Segment{}, 1), encode(&wire.Bye{}, 0)...)
	tests := []struct {
		name     string
		packet   []byte
		fds      int
		messages int // that come before the error
	}{
		{name: "missing", packet: encode(&wire.Segment{}, 1)},
		{name: "left over", packet: encode(&wire.Segment{}, 1), fds: 2},
		{name: "left over behind the last message", packet: two, fds: 3, messages: 1},
		{name: "not wanted", packet: encode(&wire.Bye{}, 0), fds: 1},
		{name: "no message", packet: []byte("garbage, and more of it"), fds: 4},
		{name: "garbage behind a message", packet: append(encode(&wire.Segment{}, 1), "garbage"...), fds: 3, messages: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a, b := pair(t)
			checkNoLeak(t, func() {
				sendRaw(t, a, tt.packet, repeat(file, tt.fds))
				r := NewReceiver(b)
				for range tt.messages {
					_, _, fds, err := r.Next()
					if err != nil {
						t.Fatal(err)
					}
					process.CloseAll(fds)
				}
				if h, _, fds, err := r.Next(); !errors.Is(err, wire.ErrProtocol) || fds != nil {
					t.Errorf("Next = %+v, %v, %v; want ErrProtocol", h, fds, err)
				}
			})
		})
	}
}
