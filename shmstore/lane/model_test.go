package lane

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// sent is a frame in the model.
type sent struct {
	kind    Kind
	payload []byte
	end     uint64 // the position behind it
}

// model is a lane made of slices: the published frames, and those that the receiver holds.
type model struct {
	capacity        uint64
	published, held []sent
	next, head      uint64
}

// place returns the begin and the end of the next frame.
func (m *model) place(n int) (end uint64, fits bool) {
	begin := m.next
	span := uint64(headerBytes+n+frameAlign-1) / frameAlign * frameAlign
	if begin%m.capacity+span > m.capacity {
		begin += m.capacity - begin%m.capacity
	}
	end = begin + span
	return end, end+headerBytes-m.head <= m.capacity
}

// TestModel drives a lane and the model together, with steps of both sides
// in any order.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := 1 << rapid.IntRange(10, 13).Draw(t, "capacity")
		s, r := heapLane(t, capacity)
		m := &model{capacity: uint64(capacity)}
		fill := byte(0)
		add := func(t *rapid.T) {
			fill++
			payload := bytes.Repeat([]byte{fill}, rapid.IntRange(0, s.maxFrame).Draw(t, "bytes"))
			kind := Kind(rapid.Uint32Range(0, uint32(MaxKind)).Draw(t, "kind"))
			end, fits := m.place(len(payload))
			err := s.TrySend(kind, payload)
			if fits != (err == nil) || (err != nil && !errors.Is(err, ErrFull)) {
				t.Fatalf("a frame of %d bytes: %v; it fits: %v", len(payload), err, fits)
			}
			if err == nil {
				m.next = end
				m.published = append(m.published, sent{kind: kind, payload: payload, end: end})
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"add":  add,
			"add2": add, // more often than the rest
			"next": func(t *rapid.T) {
				frame, kind, ok := r.Next()
				if ok != (len(m.published) > 0) {
					t.Fatalf("Next found a frame: %v, with %d published; %v", ok, len(m.published), r.Err())
				}
				if !ok {
					return
				}
				want := m.published[0]
				m.published = m.published[1:]
				m.held = append(m.held, sent{kind: kind, payload: frame, end: want.end})
				if kind != want.kind || !bytes.Equal(frame, want.payload) || cap(frame) != len(frame) {
					t.Fatalf("frame %d of %d bytes, want %d of %d", kind, len(frame), want.kind, len(want.payload))
				}
			},
			"advance": func(t *rapid.T) {
				for _, h := range m.held { // no held frame was overwritten
					if len(h.payload) > 0 && bytes.Count(h.payload, h.payload[:1]) != len(h.payload) {
						t.Fatal("a frame changed while it was held")
					}
					m.head = h.end
				}
				m.held = nil
				r.Advance()
			},
			"": func(t *rapid.T) {
				if err := r.Err(); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

// TestFillsExactly: a lane takes frames up to the last header, which stays
// free, again and again and at each position.
func TestFillsExactly(t *testing.T) {
	const capacity = 1 << 10
	s, r := heapLane(t, capacity)
	for range capacity {
		sent := 0
		for s.TrySend(1, nil) == nil {
			sent++
		}
		if want := capacity/headerBytes - 1; sent != want {
			t.Fatalf("took %d frames, want %d", sent, want)
		}
		receiveOne(r)
		if err := s.TrySend(1, nil); err != nil {
			t.Fatalf("a frame in place of the first: %v", err)
		}
		for range sent {
			if _, _, ok := r.Next(); !ok {
				t.Fatalf("a frame is missing: %v", r.Err())
			}
		}
		if _, _, ok := r.Next(); ok {
			t.Fatal("a frame of an earlier round came again")
		}
		r.Advance()
	}
}

// TestLargestFramesFit: as many of the largest frames fit as documented.
func TestLargestFramesFit(t *testing.T) {
	s, _ := heapLane(t, 1<<12)
	for range framesPerLane {
		if err := s.TrySend(1, make([]byte, s.maxFrame)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOldBytesAreNoFrame: bytes of earlier frames, with any content, are
// not taken for a frame, wherever the last frame ends.
func TestOldBytesAreNoFrame(t *testing.T) {
	s, r := heapLane(t, 1<<10)
	old := bytes.Repeat([]byte{0xff}, s.maxFrame)
	for n := range 4 * len(old) {
		frames := []int{n % len(old), n / 4, len(old)}
		for i, n := range frames {
			if err := s.TrySend(Kind(i), old[:n]); err != nil {
				t.Fatal(err)
			}
		}
		for i, n := range frames {
			if frame, kind, ok := r.Next(); !ok || len(frame) != n || kind != Kind(i) {
				t.Fatalf("a frame of %d bytes and kind %d, %v, of %v: %v", len(frame), kind, ok, frames, r.Err())
			}
		}
		if _, _, ok := r.Next(); ok || r.Err() != nil {
			t.Fatalf("an old frame was found behind %v: %v", frames, r.Err())
		}
		r.Advance()
	}
}

// checked frames carry their number and a checksum.

func checkedFrame(buf []byte, number uint64, rng *rand.Rand) []byte {
	n := 12 + rng.IntN(cap(buf)-12+1)
	if rng.IntN(8) > 0 {
		n = min(n, 12+rng.IntN(100))
	}
	buf = buf[:n]
	binary.LittleEndian.PutUint64(buf[4:], number)
	for i := 12; i < n; i++ {
		buf[i] = byte(uint64(i) * (number + 3))
	}
	binary.LittleEndian.PutUint32(buf, crc32.ChecksumIEEE(buf[4:]))
	return buf
}

func checkFrame(frame []byte, kind Kind, number uint64) error {
	if len(frame) < 12 || kind != Kind(number%1000) {
		return fmt.Errorf("frame %d is one of kind %d with %d bytes", number, kind, len(frame))
	}
	if got := binary.LittleEndian.Uint64(frame[4:]); got != number {
		return fmt.Errorf("frame %d was received in place of %d", got, number)
	}
	if crc32.ChecksumIEEE(frame[4:]) != binary.LittleEndian.Uint32(frame) {
		return fmt.Errorf("frame %d was torn", number)
	}
	return nil
}

// TestConcurrent sends from one goroutine to another, with every Waiting. Under the race
// detector it shows that headers order the frames.
func TestConcurrent(t *testing.T) {
	const frames = 5_000
	for _, tc := range waitings {
		t.Run(tc.name, func(t *testing.T) {
			woken, gone := make(chan struct{}, 1), make(chan struct{})
			wake := func() {
				select {
				case woken <- struct{}{}:
				default: // one pending wake-up is enough
				}
			}
			s, r := heapLaneWith(t, 1<<12, Options{Waiting: tc.waiting}, wake)
			sent := make(chan error, 1)
			go func() { sent <- sendChecked(s, frames, gone) }()
			if err := receiveChecked(r, frames, func() error { <-woken; return nil }); err != nil {
				t.Error(err)
			}
			close(gone)
			if err := <-sent; err != nil {
				t.Error(err)
			}
		})
	}
}

// waitings are the values of Waiting, with names.
var waitings = []struct {
	name    string
	waiting Waiting
}{
	{name: "ladder", waiting: Ladder},
	{name: "parked", waiting: Parked},
	{name: "polling", waiting: Polling},
}
