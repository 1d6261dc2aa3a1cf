package lane

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSuperblock: these bytes are what another process expects.
func TestSuperblock(t *testing.T) {
	a, b := testGeometry(t, 1<<12).HeapSegments()
	want := make([]byte, pageBytes)
	copy(want, "OMNIBUST")
	binary.NativeEndian.PutUint32(want[8:], 1)
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

// TestFrames: and these.
func TestFrames(t *testing.T) {
	geo := testGeometry(t, 1<<10)
	a, b := geo.HeapSegments()
	s, err := NewSender(geo, a, b, &limitedWaker{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{s.TrySend(3, make([]byte, 248)), s.TrySend(3, make([]byte, 248)), s.TrySend(3, make([]byte, 248)), s.TrySend(9, []byte("abc"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	receiverPageOf(b).head.Store(768)
	if err := s.TrySend(4, make([]byte, 248)); err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for _, at := range []int{tailOffset, pageBytes + 768, pageBytes + 784, pageBytes} {
		got = append(got, binary.NativeEndian.Uint64(a[at:]))
	}
	want := []uint64{1024 + 256, 9<<32 | 3, 0xffffffff<<32 | (1024 - 784 - 8), 4<<32 | 248}
	if diff := cmp.Diff(want, got); diff != "" || string(a[pageBytes+776:][:3]) != "abc" {
		t.Errorf("tail, header, skip and wrapped header:\n%s", diff)
	}
}

func TestLayout(t *testing.T) {
	for _, capacity := range []int{-8, 0, 1 << 9, 1<<10 + 8, 3 << 10, 1 << 31} {
		if _, err := Layout(1, capacity); !errors.Is(err, ErrGeometry) {
			t.Errorf("a capacity of %d: %v", capacity, err)
		}
	}
	for _, tc := range []struct{ capacity, sender, maxFrame int }{
		{capacity: 1 << 10, sender: 4096 + 1<<10, maxFrame: 248},
		{capacity: 1 << 18, sender: 4096 + 1<<18, maxFrame: 1<<16 - 8},
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
	s, _ := heapLane(t, 1<<10, Options{})
	tooLarge := make([]byte, s.maxFrame+1)
	_, err := s.Reserve(len(tooLarge))
	for _, err := range []error{err, s.TrySend(1, tooLarge), s.Send(t.Context(), 1, tooLarge), s.Wait(t.Context(), len(tooLarge))} {
		if !errors.Is(err, ErrTooLarge) {
			t.Errorf("error %v, want ErrTooLarge", err)
		}
	}
	if err := s.TrySend(1, tooLarge[1:]); err != nil {
		t.Errorf("the largest frame: %v", err)
	}
}

func TestOptions(t *testing.T) {
	geo := testGeometry(t, 1<<10)
	a, b := geo.HeapSegments()
	bad := Options{Waiting: Sharing + 1}
	_, errS := NewSender(geo, a, b, &limitedWaker{}, bad)
	_, errR := NewReceiver(geo, b, a, &limitedWaker{}, bad)
	if !errors.Is(errS, ErrOptions) || !errors.Is(errR, ErrOptions) {
		t.Errorf("%v, %v", errS, errR)
	}
}

// TestMisuse: mistakes of this process's own code are loud.
func TestMisuse(t *testing.T) {
	geo := testGeometry(t, 1<<10)
	a, b := geo.HeapSegments()
	for name, misuse := range map[string]func(s *Sender, r *Receiver){
		"negative size":         func(s *Sender, _ *Receiver) { _, _ = s.Reserve(-1) },
		"commit of nothing":     func(s *Sender, _ *Receiver) { s.Commit(1, 0) },
		"commit of too much":    func(s *Sender, _ *Receiver) { _, _ = s.Reserve(8); s.Commit(1, 9) },
		"commit of less than 0": func(s *Sender, _ *Receiver) { _, _ = s.Reserve(8); s.Commit(1, -1) },
		"commit twice":          func(s *Sender, _ *Receiver) { _, _ = s.Reserve(8); s.Commit(1, 8); s.Commit(1, 8) },
		"kind of a skip":        func(s *Sender, _ *Receiver) { _, _ = s.Reserve(8); s.Commit(MaxKind+1, 8) },
		"wait with frames held": func(s *Sender, r *Receiver) { _ = s.TrySend(1); r.Next(); _ = r.Wait(t.Context()) },
		"no geometry":           func(*Sender, *Receiver) { Geometry{}.FormatSender(a) },
		"wrong size":            func(*Sender, *Receiver) { geo.FormatReceiver(b[:64]) },
		"not aligned":           func(*Sender, *Receiver) { geo.FormatReceiver(alignedBytes(len(b) + 8)[8:]) },
	} {
		t.Run(name, func(t *testing.T) {
			s, r := heapLane(t, 1<<10, Options{})
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			misuse(s, r)
		})
	}
}
