package lane

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

var errEnough = errors.New("enough")

// limitedWaker sleeps for no time, a number of times.
type limitedWaker struct{ parks int }

func (w *limitedWaker) Park() error {
	if w.parks--; w.parks < 0 {
		return errEnough
	}
	return nil
}
func (w *limitedWaker) Unpark() {}
func (w *limitedWaker) Wake()   {}

// A hostile script is a sequence of steps of 10 bytes: what to do, where to
// write, and what.
const (
	stepBytes     = 10
	maxSteps      = 512
	hostileParks  = 4
	hostileMemory = 1 << 10
)

// steps calls do for each step of a script.
func steps(script []byte, do func(op byte, where byte, value uint64)) {
	for step := range slices.Chunk(script[:min(len(script), stepBytes*maxSteps)], stepBytes) {
		if len(step) == stepBytes {
			do(step[0], step[1], binary.LittleEndian.Uint64(step[2:]))
		}
	}
}

func step(op, where byte, value uint64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{op, where}, value)
}

// FuzzReceiver lets a sender write anything into its segment, between the
// steps of an honest receiver. Whatever it writes, the receiver stays within
// the lane, and an error stays.
func FuzzReceiver(f *testing.F) {
	at := func(offset byte, kind Kind, length uint64) []byte { return step(0, offset/4, headerOf(kind, length)) }
	next, advance, wait := step(2, 0, 0), step(3, 0, 0), step(4, 0, 0)
	f.Add(slices.Concat(at(0, 1, 5), next, advance, next, wait))
	f.Add(slices.Concat(at(0, 1, 5), wait, step(0, 0, 0), next, wait))
	f.Add(slices.Concat(step(0, 0, 1<<63), next, advance))
	f.Add(slices.Concat(step(1, 1, headerOf(1, 5)), next))
	f.Add(slices.Concat(at(0, 1, 1<<31-1), wait, next, wait))
	f.Add(slices.Concat(at(0, skipKind, hostileMemory-8), next, next))
	f.Add(slices.Concat(at(0, 1, 240), next, at(248, 1, 240), next, at(0, 1, 240), advance, next, wait))
	f.Fuzz(func(t *testing.T, script []byte) {
		geo := testGeometry(t, hostileMemory)
		a, b := geo.HeapSegments()
		waker := &limitedWaker{}
		r, err := NewReceiver(geo, b, a, waker, Options{Waiting: Parked})
		if err != nil {
			t.Fatal(err)
		}
		peer := senderPageOf(a)
		var poisoned error
		steps(script, func(op, where byte, value uint64) {
			switch op % 6 {
			case 0:
				headerAt(r.frames, uint64(where)*4&^7).Store(value)
			case 1:
				put64(a, pageBytes+min(int(where)*4, hostileMemory-8), value)
			case 2:
				frame, _, ok := r.Next()
				if ok && (poisoned != nil || len(frame) > geo.MaxFrameBytes() || cap(frame) != len(frame)) {
					t.Fatalf("a frame of %d bytes, after %v", len(frame), poisoned)
				}
			case 3:
				r.Advance()
			case 4:
				waker.parks = hostileParks
				if r.next == r.head || r.err != nil {
					if err := r.Wait(t.Context()); err != nil && !errors.Is(err, ErrPeer) && !errors.Is(err, errEnough) {
						t.Fatal(err)
					}
				}
			case 5:
				peer.asleep.Store(uint32(value))
				peer.wantRoom.Store(value)
			}
			if r.next-r.head > r.capacity-headerBytes {
				t.Fatalf("head %d, next %d", r.head, r.next)
			}
			if err := r.Err(); (err != nil && !errors.Is(err, ErrPeer)) || (poisoned != nil && !errors.Is(err, poisoned)) {
				t.Fatalf("%v became %v", poisoned, err)
			}
			poisoned = r.Err()
		})
	})
}

// FuzzSender lets a receiver write anything into its segment, between the steps
// of an honest sender.
func FuzzSender(f *testing.F) {
	f.Add(slices.Concat(step(1, 200, 0), step(1, 200, 0), step(0, 0, 1<<63), step(2, 0, 0), step(1, 200, 0)))
	f.Add(slices.Concat(step(1, 200, 0), step(1, 200, 0), step(1, 200, 0), step(1, 200, 0), step(1, 200, 0), step(0, 0, 208), step(1, 200, 0), step(2, 250, 0)))
	f.Add(slices.Concat(step(0, 0, 3), step(2, 100, 0), step(3, 0, 1)))
	f.Add(slices.Concat(step(1, 248, 0), step(4, 248, 0), step(4, 248, 0), step(4, 248, 0), step(0, 0, 512), step(4, 8, 0)))
	f.Fuzz(func(t *testing.T, script []byte) {
		geo := testGeometry(t, hostileMemory)
		a, b := geo.HeapSegments()
		waker := &limitedWaker{}
		s, err := NewSender(geo, a, b, waker, Options{Waiting: Parked})
		if err != nil {
			t.Fatal(err)
		}
		peer := receiverPageOf(b)
		payload := make([]byte, geo.MaxFrameBytes())
		var poisoned error
		steps(script, func(op, where byte, value uint64) {
			n := min(int(where), len(payload))
			waker.parks = hostileParks
			var err error
			switch op % 5 {
			case 0:
				peer.head.Store(value)
			case 1:
				err = s.TrySend(1, payload[:n])
			case 2:
				err = s.Send(t.Context(), 1, payload[:n])
			case 3:
				peer.asleep.Store(uint32(value))
			case 4:
				err = s.Append(1, payload[:n])
			}
			if err != nil && !errors.Is(err, ErrPeer) && !errors.Is(err, ErrFull) && !errors.Is(err, errEnough) {
				t.Fatal(err)
			}
			if s.next-s.head > s.capacity-headerBytes || s.published-s.head > s.next-s.head {
				t.Fatalf("head %d, published %d, next %d", s.head, s.published, s.next)
			}
			if poisoned != nil && (!errors.Is(s.Err(), poisoned) || s.TrySend(1) == nil) {
				t.Fatalf("%v became %v", poisoned, s.Err())
			}
			poisoned = s.Err()
		})
	})
}

// TestErrMeanwhile: whoever asks what ended a lane, while the receiver breaks its rules
// under the sender, is told nothing or the whole of it.
func TestErrMeanwhile(t *testing.T) {
	s, r := heapLane(t, hostileMemory, Options{Waiting: Parked})
	asked := make(chan error)
	go func() {
		for {
			if err := s.Err(); err != nil {
				asked <- err
				return
			}
		}
	}()
	r.page.head.Store(7)
	for s.TrySend(1, make([]byte, 200)) == nil {
	}
	if err := <-asked; !errors.Is(err, ErrPeer) || err.Error() != s.Err().Error() {
		t.Errorf("the end is said to be %v, it is %v", err, s.Err())
	}
}

// TestSenderErrors: each rule that a sender can break has its error.
func TestSenderErrors(t *testing.T) {
	const capacity = hostileMemory
	frame := func(at int, kind Kind, length uint64) func(a []byte) {
		return func(a []byte) { put64(a, pageBytes+at, headerOf(kind, length)) }
	}
	nothing := func(at int) func(a []byte) {
		return func(a []byte) { put64(a, pageBytes+at, 0) }
	}
	wants := func(position uint64) func(a []byte) {
		return func(a []byte) { senderPageOf(a).wantRoom.Store(position) }
	}
	// nearEnd leads the receiver to 48 bytes before the end of an empty lane.
	nearEnd := [][]func(a []byte){
		{frame(0, 1, 240), frame(248, 1, 240), frame(496, 1, 240), frame(744, 1, 224)},
	}
	for _, tc := range []struct {
		name  string
		turns [][]func(a []byte) // after each, all frames are received
		what  string             // empty: nothing is wrong
		end   uint64             // of what is received then
	}{
		{name: "a frame", end: 16, turns: [][]func([]byte){{frame(0, 1, 4)}}},
		{name: "the largest frame", end: 248, turns: [][]func([]byte){{frame(0, 1, 240)}}},
		{name: "frame to the end", end: 1024, turns: append(nearEnd, []func([]byte){frame(976, 1, 40), nothing(0)})},
		{name: "skip and frame", end: 1032, turns: append(nearEnd, []func([]byte){frame(976, skipKind, 40), frame(0, 1, 0), nothing(8)})},
		{name: "as many frames as there can be", end: 1016, turns: [][]func([]byte){{
			frame(0, 1, 240), frame(248, 1, 240), frame(496, 1, 240), frame(744, 1, 240), frame(992, 1, 16),
		}}},
		{name: "no bit of a frame", what: "header", turns: [][]func([]byte){{func(a []byte) { put64(a, pageBytes, ^uint64(present)) }}}},
		{name: "frame in the place of the last header", what: "frame", turns: [][]func([]byte){{
			frame(0, 1, 240), frame(248, 1, 240), frame(496, 1, 240), frame(744, 1, 240), frame(992, 1, 24),
		}}},
		{name: "frame behind the last header", what: "frame", turns: [][]func([]byte){{
			frame(0, 1, 240), frame(248, 1, 240), frame(496, 1, 240), frame(744, 1, 240), frame(992, 1, 16), frame(1016, 1, 0),
		}}},
		{name: "frames without an end", what: "frame", turns: [][]func([]byte){{func(a []byte) {
			for at := 0; at < capacity; at += headerBytes {
				frame(at, 1, 0)(a)
			}
		}}}},
		{name: "frame too large", what: "frame", turns: [][]func([]byte){{frame(0, 1, 241)}}},
		{name: "frame as large as can be said", what: "frame", turns: [][]func([]byte){{frame(0, 1, 1<<31-1)}}},
		{name: "frame beyond the end", what: "frame", turns: append(nearEnd, []func([]byte){frame(976, 1, 41)})},
		{name: "skip short of the end", what: "skip", turns: append(nearEnd, []func([]byte){frame(976, skipKind, 32), frame(0, 1, 0)})},
		{name: "skip beyond the end", what: "skip", turns: append(nearEnd, []func([]byte){frame(976, skipKind, 48), frame(0, 1, 0)})},
		{name: "skip without a frame", what: "frame", turns: append(nearEnd, []func([]byte){frame(976, skipKind, 40), nothing(0)})},
		{name: "skip and frame too large", what: "frame", turns: append(nearEnd, []func([]byte){frame(976, skipKind, 40), frame(0, 1, 241)})},
		{name: "skip after a skip", what: "frame", turns: append(nearEnd, []func([]byte){frame(976, skipKind, 40), frame(0, skipKind, 8)})},
		{name: "skip without room for a frame", what: "skip", turns: [][]func([]byte){{frame(0, 1, 0)}, {
			frame(8, 1, 232), frame(248, 1, 240), frame(496, 1, 240), frame(744, 1, 240), frame(992, skipKind, 24), frame(0, 1, 0),
		}}},
		{name: "room that may be waited for", end: 16, turns: [][]func([]byte){{frame(0, 1, 4), wants(16)}}},
		{name: "frame taken back", what: "wanted room", turns: [][]func([]byte){{frame(0, 1, 4), nothing(0), wants(16)}}},
		{name: "room of no frame", what: "wanted room", turns: [][]func([]byte){{frame(0, 1, 4)}, {wants(17)}}},
		{name: "skip over all", what: "skip", turns: [][]func([]byte){{frame(0, skipKind, capacity-8)}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			geo := testGeometry(t, capacity)
			a, b := geo.HeapSegments()
			r, err := NewReceiver(geo, b, a, &limitedWaker{}, Options{Waiting: Parked})
			if err != nil {
				t.Fatal(err)
			}
			for _, turn := range tc.turns {
				for _, write := range turn {
					write(a)
				}
				for range maxSteps {
					r.Next()
				}
				r.Advance()
			}
			var peer *PeerError
			err = r.Wait(t.Context())
			switch {
			case tc.what == "":
				if !errors.Is(err, errEnough) || r.head != tc.end {
					t.Errorf("a good sender is blamed, or not heard beyond %d of %d: %v", r.head, tc.end, err)
				}
			case !errors.As(err, &peer) || !errors.Is(err, ErrPeer) || peer.What != tc.what:
				t.Errorf("error %v, want one about the %s", err, tc.what)
			}
			if got := r.Err(); tc.what != "" && !errors.Is(got, ErrPeer) {
				t.Errorf("what ended the lane is said to be %v", got)
			}
		})
	}
}

// TestReceiverErrors: a receiver can break one rule, where its head may be.
func TestReceiverErrors(t *testing.T) {
	const frames, span = 4, 248
	more := make([]byte, 24) // for which there is no room then
	for _, tc := range []struct {
		name      string
		published int
		head      uint64
		good      bool
	}{
		{name: "all received", published: frames, head: frames * span, good: true},
		{name: "some received", published: frames, head: span, good: true},
		{name: "beyond what is published", published: frames - 1, head: frames * span},
		{name: "beyond the capacity", published: frames, head: frames*span + 8},
		{name: "before the start", published: frames, head: 1<<64 - 8},
		{name: "not aligned", published: frames, head: span + 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _ := heapLane(t, hostileMemory, Options{Waiting: Parked})
			for i := range frames {
				if err := s.Append(1, make([]byte, s.maxFrame)); err != nil {
					t.Fatal(err)
				}
				if i < tc.published {
					s.Publish()
				}
			}
			if err := s.Append(1, more); err != ErrFull { // not wrapped
				t.Fatal(err)
			}
			s.peer.head.Store(tc.head)
			err := s.Append(1, more)
			if tc.good {
				if err != nil {
					t.Errorf("a good receiver is blamed: %v", err)
				}
				return
			}
			var peer *PeerError
			if !errors.As(err, &peer) || !errors.Is(err, ErrPeer) || peer.What != "head" {
				t.Errorf("error %v, want one about the head", err)
			}
			s.peer.head.Store(0)
			if again := s.TrySend(1); again != err { // the very same
				t.Errorf("%v became %v", err, again)
			}
		})
	}
	t.Run("backwards", func(t *testing.T) {
		s, r := heapLane(t, hostileMemory, Options{Waiting: Parked})
		mustSend(t, s, 8)
		receiveAll(t, r)
		if err := s.readHead(); err != nil {
			t.Fatal(err)
		}
		s.peer.head.Store(8)
		if err := s.readHead(); !errors.Is(err, ErrPeer) {
			t.Errorf("a head that went back: %v", err)
		}
	})
}

func put64(b []byte, offset int, v uint64) { binary.NativeEndian.PutUint64(b[offset:], v) }

// TestSegmentsAreChecked: a segment of another lane, size, kind or version is
// refused, whichever of its bytes says so.
func TestSegmentsAreChecked(t *testing.T) {
	geo := testGeometry(t, 1<<12)
	open := func(change func(a, b []byte) ([]byte, []byte)) error {
		a, b := geo.HeapSegments()
		theirsA, theirsB := change(a, b)
		ownA, ownB := geo.HeapSegments()
		_, errS := NewSender(geo, ownA, theirsB, &limitedWaker{}, Options{})
		_, errR := NewReceiver(geo, ownB, theirsA, &limitedWaker{}, Options{})
		if (errS == nil) != (errR == nil) {
			t.Errorf("sender: %v; receiver: %v", errS, errR)
		}
		return errS
	}
	for i := range superblockBytes {
		if err := open(func(a, b []byte) ([]byte, []byte) { a[i]++; b[i]++; return a, b }); !errors.Is(err, ErrPeer) {
			t.Errorf("byte %d changed: %v", i, err)
		}
	}
	for name, change := range map[string]func(a, b []byte) ([]byte, []byte){
		"swapped": func(a, b []byte) ([]byte, []byte) { return b, a },
		"short":   func(a, b []byte) ([]byte, []byte) { return a[:len(a)-1], b[:len(b)-1] },
		"empty":   func(_, _ []byte) ([]byte, []byte) { return nil, nil },
	} {
		if err := open(change); !errors.Is(err, ErrPeer) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := open(func(a, b []byte) ([]byte, []byte) { return a, b }); err != nil {
		t.Errorf("good segments: %v", err)
	}
}
