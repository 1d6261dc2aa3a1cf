package lane

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"
)

// A hostile script is a sequence of steps of 10 bytes: an action, an
// offset to write at, and a value.
const (
	stepBytes     = 10
	maxSteps      = 512
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

// FuzzReceiver lets a sender write any bytes into its segment, between the
// steps of an honest receiver. The receiver always stays within
// the lane, and an error is permanent.
func FuzzReceiver(f *testing.F) {
	at := func(offset byte, kind Kind, length uint64) []byte { return step(0, offset/4, headerOf(kind, length)) }
	next, advance, doze := step(2, 0, 0), step(3, 0, 0), step(4, 0, 0)
	f.Add(slices.Concat(at(0, 1, 5), next, advance, next, doze))
	f.Add(slices.Concat(at(0, 1, 5), doze, step(0, 0, 0), next, doze))
	f.Add(slices.Concat(step(0, 0, 1<<63), next, advance))
	f.Add(slices.Concat(step(1, 1, headerOf(1, 5)), next))
	f.Add(slices.Concat(at(0, 1, 1<<31-1), doze, next, doze))
	f.Add(slices.Concat(at(0, skipKind, hostileMemory-8), next, next))
	f.Add(slices.Concat(at(0, 1, 240), next, at(248, 1, 240), next, at(0, 1, 240), advance, next, doze))
	f.Fuzz(func(t *testing.T, script []byte) {
		geo := testGeometry(t, hostileMemory)
		a, b := geo.heapSegments()
		r, err := NewReceiver(geo, b, a, Options{Waiting: Polling})
		if err != nil {
			t.Fatal(err)
		}
		var poisoned error
		steps(script, func(op, where byte, value uint64) {
			switch op % 5 {
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
				if r.next != r.head && poisoned == nil {
					break
				}
				if found := r.Poll(func() bool { return true }); found != (r.Err() != nil || r.header().Load() != 0) || r.PrepareSleep() == found {
					t.Fatalf("found %v in a lane with %v", found, r.Err())
				}
				r.EndSleep()
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

// FuzzSender lets a receiver write any bytes into its segment, between the steps
// of an honest sender.
func FuzzSender(f *testing.F) {
	send := func(n byte) []byte { return step(1, n, 0) }
	f.Add(slices.Concat(send(200), send(200), step(0, 0, 1<<63), send(0), send(200), send(240), send(240)))
	f.Add(slices.Concat(send(200), send(200), send(200), send(200), send(200), step(0, 0, 208), send(200), send(250)))
	f.Add(slices.Concat(step(0, 0, 3), send(100), step(2, 0, 1), send(100), send(100), step(2, 0, 3), send(100)))
	f.Add(slices.Concat(send(248), send(248), send(248), send(248), step(0, 0, 512), send(8)))
	f.Fuzz(func(t *testing.T, script []byte) {
		geo := testGeometry(t, hostileMemory)
		a, b := geo.heapSegments()
		var wakes []uint32
		peer := receiverPageOf(b)
		s, err := NewSender(geo, a, b, func() { wakes = append(wakes, peer.asleep.Load()) })
		if err != nil {
			t.Fatal(err)
		}
		payload := make([]byte, geo.MaxFrameBytes())
		var poisoned error
		steps(script, func(op, where byte, value uint64) {
			n := min(int(where), len(payload))
			var err error
			switch op % 3 {
			case 0:
				peer.head.Store(value)
			case 1:
				err = s.TrySend(1, payload[:n])
			case 2:
				peer.asleep.Store(uint32(value))
			}
			if err != nil && !errors.Is(err, ErrPeer) && !errors.Is(err, ErrFull) {
				t.Fatal(err)
			}
			if s.next-s.head > s.capacity-headerBytes {
				t.Fatalf("head %d, next %d", s.head, s.next)
			}
			if n := len(wakes); n > 0 && (wakes[n-1]%2 == 0 || n > 1 && wakes[n-1] == wakes[n-2]) {
				t.Fatalf("woken from sleeps %d", wakes)
			}
			if poisoned != nil && s.TrySend(1, nil) != poisoned { // the same error value
				t.Fatalf("%v became %v", poisoned, s.broken)
			}
			poisoned = s.broken
		})
	})
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
	// nearEnd moves the receiver to 48 bytes before the end of an empty lane.
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
		{name: "skip over all", what: "skip", turns: [][]func([]byte){{frame(0, skipKind, capacity-8)}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			geo := testGeometry(t, capacity)
			a, b := geo.heapSegments()
			r, err := NewReceiver(geo, b, a, Options{})
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
			dozes, err := r.PrepareSleep(), r.Err()
			switch {
			case tc.what == "":
				if !dozes || err != nil || r.head != tc.end {
					t.Errorf("an error for a correct sender, or frames received up to %d of %d: %v", r.head, tc.end, err)
				}
			case dozes || !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), ": "+tc.what+" "):
				t.Errorf("error %v, want one about the %s", err, tc.what)
			}
		})
	}
}

// TestHeaderIsReadOnce: a sender changes a header after the receiver has read it: that of the first frame, and one
// behind a skip. The receiver uses the value that it has read.
func TestHeaderIsReadOnce(t *testing.T) {
	const skip = 976 // its offset
	good := headerOf(1, 8)
	values := map[string]uint64{
		"another frame": headerOf(2, 232), "no frame yet": 0, "no bit of a frame": present - 1,
		"a frame too large": headerOf(1, hostileMemory), "a skip": headerOf(skipKind, hostileMemory-headerBytes),
	}
	receive := func(t *testing.T, at, first, second uint64) ([]byte, Kind, error) {
		t.Helper()
		_, r := heapLane(t, hostileMemory)
		r.head, r.next = at, at
		headerAt(r.frames, skip).Store(headerOf(skipKind, hostileMemory-skip-headerBytes))
		headerAt(r.frames, 0).Store(first)
		reads := 0
		r.headerRead = func() {
			if reads++; at == 0 || reads == 2 {
				headerAt(r.frames, 0).Store(second)
			}
		}
		frame, kind, _ := r.Next()
		return frame, kind, r.Err()
	}
	for name, at := range map[string]uint64{"first": 0, "behind a skip": skip} {
		for what, changed := range values {
			t.Run(name+" becomes "+what, func(t *testing.T) {
				if frame, kind, err := receive(t, at, good, changed); err != nil || kind != 1 || len(frame) != 8 {
					t.Errorf("a frame of kind %d and %d bytes, %v; want those of the header that was read", kind, len(frame), err)
				}
			})
		}
		t.Run(name+" was too large", func(t *testing.T) {
			if frame, _, err := receive(t, at, headerOf(1, hostileMemory), good); frame != nil || !errors.Is(err, ErrPeer) {
				t.Errorf("a frame of %d bytes, %v; want %v", len(frame), err, ErrPeer)
			}
		})
	}
}

// TestReceiverErrors: a receiver can break only the rule for its head.
func TestReceiverErrors(t *testing.T) {
	const frames, span = 4, 248
	for _, tc := range []struct {
		name string
		sent int
		head uint64
		good bool
	}{
		{name: "all received", sent: frames, head: frames * span, good: true},
		{name: "some received", sent: frames, head: span, good: true},
		{name: "beyond what was sent", sent: frames - 1, head: frames * span},
		{name: "beyond the capacity", sent: frames, head: frames*span + 8},
		{name: "before the start", sent: frames, head: 1<<64 - 8},
		{name: "not aligned", sent: frames, head: span + 4},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, _ := heapLane(t, hostileMemory)
			for range tc.sent {
				mustSend(t, s, s.maxFrame)
			}
			s.peer.head.Store(tc.head)
			err := s.readHead()
			if tc.good {
				if err != nil {
					t.Errorf("an error for a correct receiver: %v", err)
				}
				return
			}
			if !errors.Is(err, ErrPeer) || !strings.Contains(err.Error(), ": head ") {
				t.Errorf("error %v, want one about the head", err)
			}
			s.peer.head.Store(0)
			if again := s.TrySend(1, nil); again != err { // the same error value
				t.Errorf("%v became %v", err, again)
			}
		})
	}
	t.Run("read when there is no space", func(t *testing.T) {
		s, _ := heapLane(t, hostileMemory)
		s.peer.head.Store(7)
		for range frames {
			mustSend(t, s, s.maxFrame)
		}
		if err := s.TrySend(1, make([]byte, 24)); !errors.Is(err, ErrPeer) {
			t.Errorf("error %v, want %v", err, ErrPeer)
		}
	})
	t.Run("backwards", func(t *testing.T) {
		s, r := heapLane(t, hostileMemory)
		mustSend(t, s, 8)
		receiveAll(t, r)
		if err := s.readHead(); err != nil {
			t.Fatal(err)
		}
		s.peer.head.Store(8)
		if err := s.readHead(); !errors.Is(err, ErrPeer) {
			t.Errorf("a head that decreased: %v", err)
		}
	})
}

func put64(b []byte, offset int, v uint64) { binary.NativeEndian.PutUint64(b[offset:], v) }

// TestSegmentsAreChecked: a segment of another lane, size, kind or version is
// refused, for a change of each of the bytes that say so.
func TestSegmentsAreChecked(t *testing.T) {
	geo := testGeometry(t, 1<<12)
	open := func(change func(a, b []byte) ([]byte, []byte)) error {
		a, b := geo.heapSegments()
		theirsA, theirsB := change(a, b)
		ownA, ownB := geo.heapSegments()
		_, errS := NewSender(geo, ownA, theirsB, func() {})
		_, errR := NewReceiver(geo, ownB, theirsA, Options{})
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
