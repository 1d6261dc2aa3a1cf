package lane_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// largeBytes is the size of a tensor that fits no arena of a bench, and that needs several staging
// pieces.
const largeBytes = 9 * pieceBytes / 2

// TestLargeObjectsAreRegistered: the first copy of tensors to a large object registers its memory
// with the GPU, a large object without tensors is not registered, and the memory is unregistered
// before it is unmapped.
func TestLargeObjectsAreRegistered(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	var unmapped atomic.Int64
	known := b.driver.Usage().HostMemories
	b.store.OnLarge(func(mem []byte) func(unmap, stays func()) {
		release := b.from.Mapped(mem)
		return func(unmap, stays func()) {
			release(func() {
				if n := b.driver.Usage().HostMemories; n > known {
					t.Errorf("%d maps are registered when one is unmapped, %d are others", n, known)
				}
				unmapped.Add(1)
				unmap()
			}, stays)
		}
	})
	left := func() int64 { return b.store.Stats().LargeBytes }
	r, err := b.store.Reserve(largeBytes, codec.IDRaw, 0)
	if err != nil {
		t.Fatal(err)
	}
	r.Abort()
	b.store.FreeUnused()
	if s := b.lane.Stats(); s.Registered != 1 || unmapped.Load() != 1 || left() != 0 { // the arena
		t.Fatalf("without tensors: %+v, %d unmapped, %d bytes left", s, unmapped.Load(), left())
	}
	src, data := b.tensor(codec.DTypeUint8, largeBytes)
	for i := range int64(3) {
		h := b.mustSend(src, lane.Default)
		m := b.receive(h)
		if got := b.read(b.unwrap(m).(*lane.Tensor)); !bytes.Equal(got, data) {
			t.Fatal("other bytes")
		}
		settled(t, m)
		if s := b.lane.Stats(); s.Registered != 2+i || s.StagedBytes+s.PageableBytes+s.Refused != 0 {
			t.Errorf("message %d: %+v", i, s)
		}
		known = 2 // the arena, and the words of messages
		room := make(chan struct{}, 1)
		b.store.OnRoom(func() {
			select {
			case room <- struct{}{}:
			default:
			}
		})
		b.store.WantRoom(true)
		b.store.FreeUnused()
		for left() > 0 {
			<-room
		}
		b.store.WantRoom(false)
		if n := unmapped.Load(); n != 2+i {
			t.Errorf("message %d: %d are unmapped", i, n)
		}
	}
}

// refuseOnce makes a GPU refuse the next registration of memory.
type refuseOnce struct{ due atomic.Bool }

func (r *refuseOnce) call(call string) error {
	if call == "RegisterHost" && r.due.CompareAndSwap(true, false) {
		return errors.New("not today")
	}
	return nil
}

// fill sends a value into memory that the GPU refuses to register.
func (r *refuseOnce) fill(ctx context.Context, b *bench, v any, s cudaipc.Stream) (payload []byte, err error) {
	b.t.Helper()
	o, err := b.from.Plan(ctx, v, lane.Default, 0, 0, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	mem, err := shmstore.NewSegment("payload", int64(o.Size()+4095)&^4095)
	if err != nil {
		b.t.Fatal(err)
	}
	release := b.from.Mapped(mem.Bytes())
	b.t.Cleanup(func() { release(mem.Close, func() {}) })
	r.due.Store(true)
	payload = mem.Bytes()[:o.Size()]
	return payload, o.Fill(ctx, payload, s)
}

// TestRefusedObjectsAreStaged: tensors with any strides reach memory that the GPU does not reach
// through a staging buffer, before Fill returns.
func TestRefusedObjectsAreStaged(t *testing.T) {
	for name, c := range map[string]struct{ shape, strides []int }{
		"contiguous":  {[]int{largeBytes}, nil},
		"no element":  {[]int{0}, nil},
		"one element": {[]int{}, nil},
		"rows":        {[]int{1000, 3000}, []int{3001, 1}},
		"long rows":   {[]int{2, pieceBytes + 1000}, []int{pieceBytes + 1003, 1}},
		"planes":      {[]int{1300, 2, 1500}, []int{3010, 1501, 1}},
		"columns":     {[]int{60, 30000}, []int{1, 60}},
		"again":       {[]int{3, pieceBytes}, []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			var refuse refuseOnce
			b := newBench(t, emul.Options{Refuse: refuse.call}, lane.Options{})
			src, data := b.tensor(codec.DTypeUint8, 5*pieceBytes)
			part := &lane.Tensor{DType: src.DType, Shape: c.shape, Strides: c.strides, Ptr: src.Ptr}
			second := &lane.Tensor{DType: src.DType, Shape: []int{100}, Ptr: src.Ptr + 5}
			payload, err := refuse.fill(t.Context(), b, []any{part, second}, b.s)
			if err != nil {
				t.Fatal(err)
			}
			m, err := b.lane.Open(t.Context(), payload)
			if err != nil {
				t.Fatal(err)
			}
			got := m.Value().([]any)
			want := packed(data, c.shape, c.strides)
			if !bytes.Equal(got[0].(codec.Tensor).Data, want) || !bytes.Equal(got[1].(codec.Tensor).Data, data[5:105]) {
				t.Error("other bytes")
			}
			if s := b.lane.Stats(); s.Refused != 1 || s.StagedBytes != int64(len(want)+100) || s.PageableBytes != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// packed returns the elements of a strided tensor of bytes, in row-major order.
func packed(data []byte, shape, strides []int) (elements []byte) {
	switch {
	case len(shape) == 0:
		return data[:1]
	case len(shape) == 1 && (len(strides) == 0 || strides[0] == 1):
		return data[:shape[0]]
	}
	step := 1
	for _, n := range shape[1:] {
		step *= n
	}
	if strides != nil {
		step = strides[0]
		strides = strides[1:]
	}
	for i := range shape[0] {
		elements = append(elements, packed(data[i*step:], shape[1:], strides)...)
	}
	return elements
}

// heldStream is a stream that is released by the first Synchronize.
type heldStream struct {
	cudaipc.Stream
	resume func()
}

func (s heldStream) Synchronize(ctx context.Context) error {
	s.resume()
	return s.Stream.Synchronize(ctx)
}

// TestStagingWaitEnds: a deadline and a failed device end the wait for staging pieces; buffers are
// reused after their streams have passed the copies, and not before.
func TestStagingWaitEnds(t *testing.T) {
	t.Run("deadline", func(t *testing.T) {
		var refuse refuseOnce
		b := newBench(t, emul.Options{Refuse: refuse.call}, lane.Options{})
		src, data := b.tensor(codec.DTypeUint8, largeBytes)
		resume := holdStream(t, b)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		// Fill returns after the last write to the payload.
		if _, err := refuse.fill(ctx, b, src, heldStream{b.s, resume}); !errors.Is(err, context.Canceled) {
			t.Fatalf("it was sent: %v", err)
		}
		for range 9 { // more than there are buffers
			payload, err := refuse.fill(t.Context(), b, src, b.s)
			if err != nil {
				t.Fatal(err)
			}
			m, err := b.lane.Open(t.Context(), payload)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(m.Value().(codec.Tensor).Data, data) {
				t.Fatal("other bytes")
			}
		}
		if s := b.lane.Stats(); s.PageableBytes != 0 || s.StagedBytes != 9*largeBytes {
			t.Errorf("%+v", s)
		}
	})
	t.Run("failure", func(t *testing.T) {
		var refuse refuseOnce
		var copies atomic.Int64
		b := newBench(t, emul.Options{Refuse: refuse.call, Fault: func(s emul.Step) error {
			if s.Kind == cudaipc.OpCopy && s.Bytes == pieceBytes && copies.Add(1) == 3 {
				return errors.New("broken")
			}
			return nil
		}}, lane.Options{})
		src, _ := b.tensor(codec.DTypeUint8, largeBytes)
		if _, err := refuse.fill(t.Context(), b, src, b.s); !errors.Is(err, cudaipc.ErrSticky) {
			t.Fatalf("it was sent: %v", err)
		}
	})
}

// stubbornBytes is the size of memory that a stubborn GPU does not unregister.
const stubbornBytes = 4096

// stubborn is a GPU that does not unregister memory while now is set.
type stubborn struct {
	cudaipc.Driver
	now atomic.Bool
}

func (d *stubborn) Open(uuid cudaipc.UUID) (cudaipc.Device, error) {
	dev, err := d.Driver.Open(uuid)
	return &stubbornDevice{dev, d}, err
}

type stubbornDevice struct {
	cudaipc.Device
	of *stubborn
}

func (d *stubbornDevice) RegisterHost(mem []byte, readOnly bool) (cudaipc.HostMemory, error) {
	h, err := d.Device.RegisterHost(mem, readOnly)
	if len(mem) != stubbornBytes || err != nil {
		return h, err
	}
	return &stubbornMemory{h, d.of}, nil
}

type stubbornMemory struct {
	cudaipc.HostMemory
	of *stubborn
}

func (h *stubbornMemory) Close() error {
	if h.of.now.Load() {
		return cudaipc.ErrOutOfMemory
	}
	return h.HostMemory.Close()
}

// TestRefusedUnregisterKeepsMap: memory that a GPU does not unregister stays mapped, because the
// GPU would access any memory that is mapped at its addresses later. A failed GPU accesses none.
func TestRefusedUnregisterKeepsMap(t *testing.T) {
	for name, fails := range map[string]bool{"a GPU that works": false, "a GPU that has failed": true} {
		t.Run(name, func(t *testing.T) {
			driver, err := emul.New(emul.Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = driver.Close() })
			var unmapped atomic.Bool
			t.Cleanup(func() { // after the lane's Close, which waits for unregister
				if unmapped.Load() != fails {
					t.Errorf("unmapped: %t, and the GPU has failed: %t", unmapped.Load(), fails)
				}
			})
			gpu := &stubborn{Driver: driver}
			b := newBench(t, emul.Options{}, lane.Options{Driver: gpu})
			src, _ := b.tensor(codec.DTypeUint8, 100)
			mem, err := shmstore.NewSegment("payload", stubbornBytes)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(mem.Close)
			release := b.from.Mapped(mem.Bytes())
			o, err := b.from.Plan(t.Context(), src, lane.Default, 0, 0, nil)
			if err == nil {
				err = o.Fill(t.Context(), mem.Bytes()[:o.Size()], b.s)
			}
			if err != nil {
				t.Fatal(err)
			}
			if fails {
				if err := driver.Break(cudaipc.UUID{}, errors.New("broken")); err != nil {
					t.Fatal(err)
				}
			}
			done := make(chan struct{})
			gpu.now.Store(true)
			var stays atomic.Bool
			release(func() { unmapped.Store(true); close(done) }, func() { stays.Store(true); close(done) })
			<-done
			if stays.Load() == fails {
				t.Errorf("stays was called: %t, and the GPU has failed: %t", stays.Load(), fails)
			}
		})
	}
}
