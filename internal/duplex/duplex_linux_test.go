package duplex

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// recorder is a handler that keeps what it is told.
type recorder struct {
	mu       sync.Mutex
	finishes []uint32
	segments map[uint32]*shmstore.Segment
	forgot   []uint32
	changed  chan struct{} // one for each thing that was told
}

func newRecorder() *recorder {
	return &recorder{segments: make(map[uint32]*shmstore.Segment), changed: make(chan struct{}, 1<<16)}
}

func (r *recorder) Segment(number uint32, mem *shmstore.Segment) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.segments[number] = mem
	r.changed <- struct{}{}
	return nil
}

func (r *recorder) Forget(number uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgot = append(r.forgot, number)
	r.changed <- struct{}{}
}

func (r *recorder) Message(m wire.Message, _ bool) error {
	f, ok := m.(*wire.Finish)
	if !ok {
		return fmt.Errorf("%v was not expected", m.Kind())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finishes = append(r.finishes, f.Delivery)
	r.changed <- struct{}{}
	return nil
}

// side is one end of a duplex that runs.
type side struct {
	*Duplex
	rec   *recorder
	ended chan error
}

// meetBoth makes both ends of a duplex in this process.
func meetBoth(t *testing.T) (a, b *side) {
	t.Helper()
	da, db := meetIdle(t)
	return run(da), run(db)
}

func run(d *Duplex) *side {
	s := &side{Duplex: d, rec: newRecorder(), ended: make(chan error, 1)}
	go func() { s.ended <- s.Run(s.rec) }()
	return s
}

// TestMessagesInOrder sends more at once than the lane has room for, from both
// sides.
func TestMessagesInOrder(t *testing.T) {
	a, b := meetBoth(t)
	const n = 30_000 // some 24 bytes each
	var wg sync.WaitGroup
	for _, s := range []*side{a, b} {
		wg.Go(func() {
			for i := range uint32(n) {
				if err := s.Send(&wire.Finish{Delivery: i}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, s := range []*side{a, b} {
		for range n {
			<-s.rec.changed
		}
		for i, got := range s.rec.finishes {
			if got != uint32(i) {
				t.Fatalf("message %d came as number %d", got, i)
			}
		}
	}
}

func TestSegments(t *testing.T) {
	a, b := meetBoth(t)
	mem, err := shmstore.NewSegment("test", 1<<12)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	copy(mem.Bytes(), "hello")
	if err := errors.Join(a.Offer(3, mem), a.Forget(3)); err != nil {
		t.Fatal(err)
	}
	<-b.rec.changed
	<-b.rec.changed
	if got := string(b.rec.segments[3].Bytes()[:5]); got != "hello" || len(b.rec.forgot) != 1 {
		t.Errorf("segment 3 has %q, and %v were to be forgotten", got, b.rec.forgot)
	}
	b.rec.segments[3].Close()
}

// TestPeerGone: what was sent before the end of the peer is handled.
func TestPeerGone(t *testing.T) {
	a, b := meetBoth(t)
	for i := range uint32(10) {
		if err := a.Send(&wire.Finish{Delivery: i}); err != nil {
			t.Fatal(err)
		}
	}
	a.Close()
	if err := <-b.ended; !errors.Is(err, lane.ErrPeerGone) {
		t.Errorf("the end is %v, want %v", err, lane.ErrPeerGone)
	}
	if len(b.rec.finishes) != 10 {
		t.Errorf("%d messages of 10 were handled", len(b.rec.finishes))
	}
	if err := b.Send(&wire.Finish{}); err == nil {
		t.Error("a message went to a peer that is gone")
	}
}

// TestLastWords: a peer that does not read its socket holds up the end for a moment
// and no longer.
func TestLastWords(t *testing.T) {
	d, _ := meetIdle(t)
	for d.socket.Blocked() == 0 {
		if err := d.Forget(1); err != nil {
			t.Fatal(err)
		}
	}
	d.Close()
	err := d.socket.Close()
	if !errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(err.Error(), lastWords.String()) {
		t.Errorf("the socket's end is %v, want that the peer has not read within %v", err, lastWords)
	}
}

// TestStolenWakeUps: a peer that takes the wake-ups of this side's events, the one at
// the end among them, does not keep it from closing.
func TestStolenWakeUps(t *testing.T) {
	a, b := meetIdle(t)
	run(a)
	var thieves sync.WaitGroup
	defer thieves.Wait()
	over := make(chan struct{})
	defer close(over)
	for range 2 {
		thieves.Go(func() {
			var count [8]byte
			for {
				select {
				case <-over:
					return
				default:
					_, _ = unix.Read(b.its.frames.FD(), count[:])
				}
			}
		})
	}
	geo, err := lane.Layout(0, laneBytes)
	if err != nil {
		t.Fatal(err)
	}
	_, receiving := b.its.parts(geo)
	const asleep = 128 // where a receiver's counter is, which is odd while it sleeps
	for binary.NativeEndian.Uint32(receiving[asleep:])%2 == 0 {
		runtime.Gosched()
	}
	a.Close()
}

// TestForeignMessage: what is not for a lane ends the duplex.
func TestForeignMessage(t *testing.T) {
	a, b := meetBoth(t)
	if err := a.Send(&wire.Drain{}); err != nil {
		t.Fatal(err)
	}
	if err := <-b.ended; !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("the end is %v, want %v", err, wire.ErrProtocol)
	}
	if err := <-a.ended; !errors.Is(err, lane.ErrPeerGone) {
		t.Errorf("at the other side the end is %v, want %v", err, lane.ErrPeerGone)
	}
}

func TestMeetRefuses(t *testing.T) {
	for name, first := range map[string]func(c *peer.Sender) error{
		"another message": func(s *peer.Sender) error { return s.Queue(&wire.Drain{}) },
		"nothing":         func(s *peer.Sender) error { return s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			ca, cb, err := peer.Pair()
			if err != nil {
				t.Fatal(err)
			}
			s, err := peer.NewSender(cb, peer.SenderOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(first(s), s.Close(), cb.Close()); err != nil {
				t.Fatal(err)
			}
			if d, err := Meet(ca, 1, 0, Options{}); err == nil {
				d.Close()
				t.Error("it met a peer that is none")
			}
		})
	}
}
