package actors_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/omnibus-runtime/omnibus/actors"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// countedDevice is a device with a capacity in bytes. Only the writer calls it.
type countedDevice struct {
	capacity, used int64
	next           uint32
	pieces         map[uint32]int64
}

func newCountedDevice(capacity int64) *countedDevice {
	return &countedDevice{capacity: capacity, pieces: make(map[uint32]int64)}
}

func (d *countedDevice) Allocate(sizeBytes int64) (piece uint32, ok bool) {
	if d.used+sizeBytes > d.capacity {
		return 0, false
	}
	d.next++
	d.used += sizeBytes
	d.pieces[d.next] = sizeBytes
	return d.next, true
}

func (d *countedDevice) Free(piece uint32) {
	d.used -= d.pieces[piece]
	delete(d.pieces, piece)
}

func (d *countedDevice) Pieces() int     { return len(d.pieces) }
func (d *countedDevice) MaxBytes() int64 { return d.capacity }

// requestOn is request for an object of size bytes with a piece of a device.
func (h *host) requestOn(t *testing.T, done, cancel <-chan struct{}, dev shmstore.Device, deviceBytes int64, size int) *pending {
	t.Helper()
	w := &pending{}
	producer := h.NewProducer()
	go func() {
		r, _, err := producer.ReserveOn(done, cancel, dev, deviceBytes, size, codec.IDRaw)
		if w.err = err; err == nil {
			w.got = []shmstore.Reservation{r}
		}
		w.over = true
	}()
	synctest.Wait()
	return w
}

// abort aborts the reservations of w, and waits until the writer has served its queue.
func (w *pending) abort() {
	abortAll(w.got)
	synctest.Wait()
}

func TestWriterGrantsOnDevice(t *testing.T) {
	h := newHost(t, roomy)
	device := newCountedDevice(10)
	var pieces []uint32
	for range 3 { // pieces of released objects are evicted
		r, piece, err := h.ReserveOn(nil, nil, device, 6, 100, codec.IDMsgpack)
		if err != nil {
			t.Fatal(err)
		}
		handle, err := r.Commit(80, 1)
		if err != nil || handle.Size != 80 || codec.ID(handle.Codec) != codec.IDMsgpack {
			t.Fatalf("Commit: %v, %v", handle, err)
		}
		if err := h.store.Local().Drop(handle); err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, piece)
	}
	if st := h.stats(t); !slices.Equal(pieces, []uint32{1, 2, 3}) || st.Pieces != 1 || st.DeviceEvictedTotal != 2 {
		t.Errorf("pieces %v, %d in use, %d evicted", pieces, st.Pieces, st.DeviceEvictedTotal)
	}
}

// TestWriterServesDeviceInOrder: a piece that would fit waits behind an older one that
// does not.
func TestWriterServesDeviceInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, device := newHost(t, roomy), newCountedDevice(10)
		first := h.requestOn(t, nil, nil, device, 4, 100)
		second := h.requestOn(t, nil, nil, device, 4, 100)
		second.mustBeGranted(t, "the second")
		large := h.requestOn(t, nil, nil, device, 9, 100)
		small := h.requestOn(t, nil, nil, device, 2, 100) // fits all the time
		large.mustWait(t, "the large one")
		small.mustWait(t, "the small one behind")
		first.abort()
		large.mustWait(t, "the large one, with half the space")
		small.mustWait(t, "the small one behind it")
		second.abort()
		large.mustBeGranted(t, "the large one")
		small.mustWait(t, "the small one, with one byte left")
		large.abort()
		small.mustBeGranted(t, "the small one, last")
		small.abort()
	})
}

// TestFullDeviceBlocksOnlyItsWaiters: a full device blocks neither reservations without a
// device, nor those on another device, nor the extents of small payloads.
func TestFullDeviceBlocksOnlyItsWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, device, other := newHost(t, roomy), newCountedDevice(10), newCountedDevice(10)
		held := h.requestOn(t, nil, nil, device, 10, 100)
		waits := h.requestOn(t, nil, nil, device, 1, 100)
		waits.mustWait(t, "the one that lacks the device")

		plain := h.request(t, nil, nil, 1, twelveKB)
		plain.mustBeGranted(t, "one without a piece")
		elsewhere := h.requestOn(t, nil, nil, other, 10, 100)
		elsewhere.mustBeGranted(t, "one on another device")
		producer := h.NewProducer()
		for range 2 { // the second time two are granted, so that one is kept
			r, err := producer.Reserve(nil, nil, 100, codec.IDRaw)
			if err != nil {
				t.Fatal(err)
			}
			r.Abort()
		}
		r, atHand := producer.TryReserve(100, codec.IDRaw)
		if !atHand {
			t.Error("no extent is kept while a reservation waits for a device")
		} else {
			r.Abort()
		}
		producer.Close()
		synctest.Wait()
		waits.mustWait(t, "the one that lacks the device")
		held.abort()
		waits.mustBeGranted(t, "the one that waited")
		for _, w := range []*pending{waits, plain, elsewhere} {
			w.abort()
		}
	})
}

// TestFullArenaIsServedInOrder: a reservation with space on its device and none in the
// arena waits for the arena, before later reservations.
func TestFullArenaIsServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, device := newHost(t, roomy), newCountedDevice(10)
		held := h.occupy(t, twelveKB)
		before := h.request(t, nil, nil, 1, 2*twelveKB)
		on := h.requestOn(t, nil, nil, device, 10, twelveKB)
		behindOn := h.requestOn(t, nil, nil, device, 1, 100)
		behind := h.request(t, nil, nil, 1, twelveKB)
		if n := device.Pieces(); n != 0 {
			t.Errorf("%d pieces are in use by reservations that wait for the arena", n)
		}
		abortAll(held[:1])
		synctest.Wait()
		for _, w := range []*pending{before, on, behindOn, behind} {
			w.mustWait(t, "one behind a large one")
		}
		abortAll(held[1:2])
		synctest.Wait()
		before.mustBeGranted(t, "the first")
		on.mustWait(t, "the one on the device")
		abortAll(held[2:3])
		synctest.Wait()
		on.mustBeGranted(t, "the one on the device")
		behindOn.mustWait(t, "the next on the device")
		behind.mustWait(t, "the last")
		abortAll(held[3:4])
		synctest.Wait()
		behind.mustBeGranted(t, "the last: the one in front lacks the device alone")
		behindOn.mustWait(t, "the next on the device")
		on.abort()
		behindOn.mustBeGranted(t, "the next on the device")
		abortAll(held[4:])
		for _, w := range []*pending{before, behindOn, behind} {
			w.abort()
		}
	})
}

// TestDeviceWaiterIsNotOvertakenInTheArena: a reservation that waits for a device and then
// finds the arena full blocks the arena from then on, also for later small reservations.
func TestDeviceWaiterIsNotOvertakenInTheArena(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, device := newHost(t, roomy), newCountedDevice(10)
		holder := h.requestOn(t, nil, nil, device, 10, 100)
		on := h.requestOn(t, nil, nil, device, 10, 3*twelveKB)
		held := h.occupy(t, twelveKB)
		on.mustWait(t, "the one on the device")
		holder.abort() // now it lacks the arena
		var waiting []*pending
		for i := range held {
			small := h.request(t, nil, nil, 1, twelveKB)
			small.mustWait(t, "a small one behind")
			held[i].Abort()
			synctest.Wait()
			waiting = append(waiting, small)
			if on.over {
				abortAll(held[i+1:])
				break
			}
		}
		on.mustBeGranted(t, "the one on the device")
		on.abort()
		for _, small := range waiting {
			small.mustBeGranted(t, "a small one behind")
			small.abort()
		}
	})
}

func TestDeviceWaiterGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, device := newHost(t, roomy), newCountedDevice(10)
		held := h.requestOn(t, nil, nil, device, 8, 100)
		done, cancel := make(chan struct{}), make(chan struct{})
		large := h.requestOn(t, done, nil, device, 10, 100)
		larger := h.requestOn(t, nil, cancel, device, 9, 100)
		small := h.requestOn(t, nil, nil, device, 1, 100)
		close(done)
		synctest.Wait()
		small.mustWait(t, "the small one, with one left in front")
		close(cancel)
		synctest.Wait()
		small.mustBeGranted(t, "the small one, the only one in the queue")
		for _, w := range []*pending{large, larger} {
			if !w.over || !errors.Is(w.err, actors.ErrCanceled) {
				t.Errorf("a canceled reservation: answered %t, %v", w.over, w.err)
			}
		}
		small.abort()
		held.abort()
	})
}

// TestWriterRefusesOnDeviceAtOnce makes requests that no release can satisfy, with and
// without waiting reservations, and requests after Close.
func TestWriterRefusesOnDeviceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, device := newHost(t, roomy), newCountedDevice(10)
		check := func() {
			for want, w := range map[error]*pending{
				shmstore.ErrTooLarge: h.requestOn(t, nil, nil, device, 11, 100),
				shmstore.ErrSize:     h.requestOn(t, nil, nil, device, -1, 100),
			} {
				if !w.over || !errors.Is(w.err, want) {
					t.Errorf("answered %t, %v, want %v", w.over, w.err, want)
				}
			}
		}
		check()
		held := h.requestOn(t, nil, nil, device, 10, 100)
		waits := h.requestOn(t, nil, nil, device, 1, 100)
		check()
		closeNow(t, h)
		synctest.Wait()
		late := h.requestOn(t, nil, nil, device, 1, 100)
		for _, w := range []*pending{waits, late} {
			if !w.over || !errors.Is(w.err, actors.ErrStopped) {
				t.Errorf("after Close: answered %t, %v", w.over, w.err)
			}
		}
		held.abort()
	})
}
