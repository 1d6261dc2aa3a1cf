package lane

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSuperblock: another process expects exactly these bytes.
func TestSuperblock(t *testing.T) {
	a, b := testGeometry(t, 1<<12).heapSegments()
	want := make([]byte, pageBytes)
	copy(want, "OMNIBUST")
	binary.NativeEndian.PutUint32(want[8:], 2)
	binary.NativeEndian.PutUint64(want[16:], 7)
	binary.NativeEndian.PutUint64(want[24:], 1<<12)
	if diff := cmp.Diff(want, a[:pageBytes]); diff != "" {
		t.Errorf("sender's page:\n%s", diff)
	}
	want[7] = 'H'
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("receiver's page:\n%s", diff)
	}
}

// TestFrames: another process expects exactly these bytes.
func TestFrames(t *testing.T) {
	geo := testGeometry(t, 1<<10)
	a, b := geo.heapSegments()
	s, err := NewSender(geo, a, b, func() {})
	if err != nil {
		t.Fatal(err)
	}
	for i := pageBytes + headerBytes; i < len(a); i++ {
		a[i] = 0xee // only the first header must be zero
	}
	headers := func(at ...int) (got []uint64) {
		for _, at := range at {
			got = append(got, binary.NativeEndian.Uint64(a[pageBytes+at:]))
		}
		return got
	}
	large := make([]byte, 240)
	for _, err := range []error{s.TrySend(3, large), s.TrySend(3, large), s.TrySend(3, large), s.TrySend(9, []byte("abc"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	const frame = 1 << 31
	want := []uint64{3<<32 | frame | 240, 9<<32 | frame | 3, 0}
	if diff := cmp.Diff(want, headers(0, 744, 760)); diff != "" || string(a[pageBytes+752:][:3]) != "abc" {
		t.Errorf("headers:\n%s", diff)
	}
	receiverPageOf(b).head.Store(744)
	if err := errors.Join(s.TrySend(5, large[:32]), s.TrySend(4, large)); err != nil {
		t.Fatal(err)
	}
	want = []uint64{5<<32 | frame | 32, 0xffffffff<<32 | frame | (1024 - 800 - 8), 4<<32 | frame | 240, 0}
	if diff := cmp.Diff(want, headers(760, 800, 0, 248)); diff != "" {
		t.Errorf("headers, with a skip and behind it:\n%s", diff)
	}
}

// TestFormatClears: formatted memory that was used before holds no frame.
func TestFormatClears(t *testing.T) {
	geo := testGeometry(t, 1<<10)
	a, b := geo.heapSegments()
	for _, segment := range [][]byte{a, b} {
		for i := range segment {
			segment[i] = 0xff
		}
	}
	geo.FormatSender(a)
	geo.FormatReceiver(b)
	s, errS := NewSender(geo, a, b, func() {})
	r, errR := NewReceiver(geo, b, a, Options{})
	if err := errors.Join(errS, errR); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := r.Next(); ok || r.Err() != nil {
		t.Fatalf("a new lane holds a frame: %v", r.Err())
	}
	mustSend(t, s, 8)
	receiveAll(t, r)
}

func TestLayout(t *testing.T) {
	for _, capacity := range []int{-8, 0, 1 << 9, 1<<10 + 8, 3 << 10, 1 << 31} {
		if _, err := Layout(1, capacity); err == nil {
			t.Errorf("a capacity of %d: %v", capacity, err)
		}
	}
	for _, tc := range []struct{ capacity, sender, maxFrame int }{
		{capacity: 1 << 10, sender: 4096 + 1<<10, maxFrame: 240},
		{capacity: 1 << 18, sender: 4096 + 1<<18, maxFrame: 1<<16 - 16},
		{capacity: 1 << 20, sender: 4096 + 1<<20, maxFrame: 1 << 16},
	} {
		geo := testGeometry(t, tc.capacity)
		if geo.SenderBytes() != tc.sender || geo.ReceiverBytes() != 4096 || geo.MaxFrameBytes() != tc.maxFrame {
			t.Errorf("capacity %d: segments of %d and %d bytes, frames of %d",
				tc.capacity, geo.SenderBytes(), geo.ReceiverBytes(), geo.MaxFrameBytes())
		}
	}
}

func TestTooLarge(t *testing.T) {
	s, _ := heapLane(t, 1<<10)
	tooLarge := make([]byte, s.maxFrame+1)
	if err := s.TrySend(1, tooLarge); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v, want ErrTooLarge", err)
	}
	if err := s.TrySend(1, tooLarge[1:]); err != nil {
		t.Errorf("the largest frame: %v", err)
	}
}

func TestOptions(t *testing.T) {
	geo := testGeometry(t, 1<<10)
	a, b := geo.heapSegments()
	for _, bad := range []Waiting{-1, Polling + 1} {
		if _, err := NewReceiver(geo, b, a, Options{Waiting: bad}); err == nil {
			t.Errorf("waiting %d: %v", bad, err)
		}
	}
}

// TestMisuse: misuse by this process's own code panics.
func TestMisuse(t *testing.T) {
	geo := testGeometry(t, 1<<10)
	a, b := geo.heapSegments()
	for name, misuse := range map[string]func(s *Sender, r *Receiver){
		"kind of a skip":        func(s *Sender, _ *Receiver) { _ = s.TrySend(MaxKind+1, nil) },
		"doze with frames held": func(s *Sender, r *Receiver) { _ = s.TrySend(1, nil); r.Next(); r.PrepareSleep() },
		"look with frames held": func(s *Sender, r *Receiver) { _ = s.TrySend(1, nil); r.Next(); r.Poll(never) },
		"no geometry":           func(*Sender, *Receiver) { Geometry{}.FormatSender(a) },
		"wrong size":            func(*Sender, *Receiver) { geo.FormatReceiver(b[:64]) },
		"not aligned":           func(*Sender, *Receiver) { geo.FormatReceiver(alignedBytes(len(b) + 8)[8:]) },
	} {
		t.Run(name, func(t *testing.T) {
			s, r := heapLane(t, 1<<10)
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			misuse(s, r)
		})
	}
}
