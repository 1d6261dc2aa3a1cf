package lane_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

var modes = []lane.Mode{lane.Default, lane.IPC, lane.Pool}

func TestNestedValues(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			b := newBench(t, emul.Options{}, lane.Options{})
			gpu, gpuData := b.tensor(codec.DTypeFloat32, 3, 5, 7)
			half, halfData := b.tensor(codec.DTypeBFloat16, 11)
			scalar, scalarData := b.tensor(codec.DTypeInt64)
			empty, _ := b.tensor(codec.DTypeFloat32, 4, 0)
			cpu := codec.Tensor{DType: codec.DTypeInt32, Shape: []int{2}, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}}
			m := b.receive(b.mustSend(map[string]any{
				"id": "r1", "image": gpu, "deep": []any{map[string]any{"half": half, "cpu": cpu}, scalar, int64(7)}, "empty": empty,
			}, mode))
			if want := mode != lane.Default; m.OnDevice() != want {
				t.Errorf("on a device: %t, want %t", m.OnDevice(), want)
			}
			v := b.unwrap(m).(map[string]any)
			deep := v["deep"].([]any)
			for _, c := range []struct {
				name string
				got  any
				want []byte
			}{
				{"image", v["image"], gpuData},
				{"half", deep[0].(map[string]any)["half"], halfData},
				{"cpu", deep[0].(map[string]any)["cpu"], cpu.Data},
				{"scalar", deep[1], scalarData},
				{"empty", v["empty"], []byte{}},
			} {
				got, ok := c.got.(*lane.Tensor)
				if !ok {
					t.Errorf("%s is a %T", c.name, c.got)
				} else if data := b.read(got); !bytes.Equal(data, c.want) {
					t.Errorf("%s: other bytes", c.name)
				}
			}
			if v["id"] != "r1" || deep[2] != int64(7) {
				t.Errorf("the rest is %v", v)
			}
			if diff := cmp.Diff([]int{3, 5, 7}, v["image"].(*lane.Tensor).Shape); diff != "" {
				t.Error(diff)
			}
			settled(t, m)
		})
	}
}

// TestStrided sends a transposed tensor in every mode.
func TestStrided(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			b := newBench(t, emul.Options{}, lane.Options{})
			base, data := b.tensor(codec.DTypeUint16, 6, 4)
			view := &lane.Tensor{DType: codec.DTypeUint16, Shape: []int{4, 6}, Strides: []int{1, 4}, Ptr: base.Ptr}
			var want []byte
			for i := range 4 {
				for j := range 6 {
					want = append(want, data[2*(j*4+i):2*(j*4+i)+2]...)
				}
			}
			m := b.receive(b.mustSend([]any{view}, mode))
			got := b.unwrap(m).([]any)[0].(*lane.Tensor)
			if !bytes.Equal(b.read(got), want) {
				t.Error("other elements, or in another order")
			}
			settled(t, m)
		})
	}
}

// TestReadWaitsForProducer: a consumer's stream reads a chunk after the producer's copies into it.
func TestReadWaitsForProducer(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	src, data := b.tensor(codec.DTypeUint8, 4096)
	hold := holdStream(t, b)
	h := b.mustSend(src, lane.Pool)
	m := b.receive(h)
	reader, err := b.dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	if err := m.Await(reader); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(data))
	view := m.Value().(*lane.Tensor)
	if err := reader.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(got), Src: view.Ptr, Bytes: int64(len(got))}); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if ctx, cancel := context.WithTimeout(t.Context(), 0); reader.Synchronize(ctx) == nil {
		t.Error("the reader did not wait for the producer")
		cancel()
	} else {
		cancel()
	}
	hold()
	b.sync(reader)
	if !bytes.Equal(got, data) {
		t.Error("the view was read before it was complete")
	}
	settled(t, m)
}

// TestChunkStaysWhileItIsRead: the chunk of a closed message stays allocated until its stream is
// done.
func TestChunkStaysWhileItIsRead(t *testing.T) {
	b := newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{Pool: pool.Options{ArenaBytes: 1 << 20, MaxBytes: 1 << 20}})
	src, _ := b.tensor(codec.DTypeUint8, 400<<10)
	h := b.mustSend(src, lane.Pool)
	b.sync(b.s)
	m := b.receive(h)
	resume := holdStream(t, b)
	if err := m.Await(b.s); err != nil {
		t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	// Two such chunks fit, and no third: while the stream waits, one is in use.
	second := b.mustSend(src, lane.Pool)
	if _, _, err := b.send(src, lane.Pool, 0, nil); !errors.Is(err, shmstore.ErrFull) {
		t.Fatalf("a chunk with a reader was allocated: %v", err)
	}
	resume()
	settled(t, m)
	third := b.mustSend(src, lane.Pool)
	for _, h := range []shmstore.Handle{second, third} {
		m := b.receive(h)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFreedChunkIsLate: a freed chunk with queued copies is not allocated before they are done.
func TestFreedChunkIsLate(t *testing.T) {
	b := newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{Pool: pool.Options{ArenaBytes: 1 << 20, MaxBytes: 1 << 20}})
	src, _ := b.tensor(codec.DTypeUint8, 500<<10)
	resume := holdStream(t, b)
	for range 2 { // both are dropped unread, as by a consumer that died
		if err := b.store.Local().Drop(b.mustSend(src, lane.Pool)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := b.send(src, lane.Pool, 0, nil); !errors.Is(err, shmstore.ErrFull) {
		t.Fatalf("a chunk with queued copies was allocated: %v", err)
	}
	resume()
	b.sync(b.s)
	h := b.mustSend(src, lane.Pool)
	if err := b.store.Local().Drop(h); err != nil {
		t.Fatal(err)
	}
	b.sync(b.s)
}

// TestReleaseWithoutTensorsOnAGPU: release is also called for a value without tensors on a GPU.
func TestReleaseWithoutTensorsOnAGPU(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	released := false
	h, _, err := b.send(map[string]any{"x": 1}, lane.Pool, 0, func() { released = true })
	if err != nil || !released {
		t.Fatalf("released: %v, %v", released, err)
	}
	if err := b.receive(h).Close(); err != nil {
		t.Fatal(err)
	}
}

// TestReleaseOfSourceMemory checks when each mode calls release.
func TestReleaseOfSourceMemory(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			b := newBench(t, emul.Options{}, lane.Options{})
			src, _ := b.tensor(codec.DTypeFloat32, 64)
			released := make(chan struct{})
			h, _, err := b.send(src, mode, 0, func() { close(released) })
			if err != nil {
				t.Fatal(err)
			}
			if mode == lane.IPC {
				m := b.receive(h)
				select {
				case <-released:
					t.Error("released while it is read")
				default:
				}
				if err := m.Close(); err != nil {
					t.Fatal(err)
				}
				settled(t, m)
				b.store.FreeUnused()
				<-released
				return
			}
			<-released
			m := b.receive(h)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestUnavailableModesFallBack: a missing mode falls back to host memory, with a count and a
// reason.
func TestUnavailableModesFallBack(t *testing.T) {
	b := newBench(t, emul.Options{Missing: map[string]string{"Arenas": "no virtual memory", "Handles": "a container"}}, lane.Options{})
	src, data := b.tensor(codec.DTypeFloat32, 8)
	for _, mode := range []lane.Mode{lane.IPC, lane.Pool} {
		if err := b.lane.Why(mode); !errors.Is(err, cudaipc.ErrUnsupported) {
			t.Errorf("%v: %v, want ErrUnsupported", mode, err)
		}
		m := b.receive(b.mustSend(src, mode))
		if got := m.Value().(codec.Tensor); !bytes.Equal(got.Data, data) {
			t.Errorf("%v: other bytes", mode)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.lane.Stats(); s.Fallbacks != 2 || s.Default.Messages != 2 {
		t.Errorf("stats are %+v", s)
	}
}

func TestSmallAndLargeGoThroughHostMemory(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{Pool: pool.Options{ArenaBytes: 1 << 20}})
	small, _ := b.tensor(codec.DTypeUint8, 64)
	large, _ := b.tensor(codec.DTypeUint8, 600<<10)
	for _, src := range []*lane.Tensor{small, large} {
		h, o, err := b.send(src, lane.Pool, 65, nil)
		if err != nil {
			t.Fatal(err)
		}
		if o.Mode() != lane.Default {
			t.Errorf("%v travels by %v", src, o.Mode())
		}
		if err := b.store.Local().Drop(h); err != nil {
			t.Fatal(err)
		}
	}
	if s := b.lane.Stats(); s.Small != 1 || s.Spilt != 1 {
		t.Errorf("stats are %+v", s)
	}
}

// TestStickyFailure: after a failed copy no call waits for ever, and host memory still works.
func TestStickyFailure(t *testing.T) {
	broken := errors.New("a fault")
	var fail atomic.Bool
	b := newBench(t, emul.Options{Fault: func(s emul.Step) error {
		if fail.Load() && s.Kind == cudaipc.OpCopy {
			return broken
		}
		return nil
	}}, lane.Options{})
	src, _ := b.tensor(codec.DTypeUint8, 4096)
	resume := holdStream(t, b)
	h := b.mustSend(src, lane.Pool)
	m := b.receive(h)
	fail.Store(true)
	resume()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := m.Wait(ctx); !errors.Is(err, cudaipc.ErrSticky) {
		t.Errorf("wait: %v, want ErrSticky", err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	settled(t, m)
	if _, _, err := b.send(src, lane.Pool, 0, nil); !errors.Is(err, cudaipc.ErrSticky) && !errors.Is(err, shmstore.ErrFull) {
		t.Errorf("send: %v, want ErrSticky", err)
	}
	plain := b.receive(b.mustSend(codec.Tensor{DType: codec.DTypeUint8, Shape: []int{4}, Data: []byte("host")}, lane.Pool))
	if got := plain.Value().(codec.Tensor); string(got.Data) != "host" {
		t.Errorf("host memory: %q", got.Data)
	}
	if err := plain.Close(); err != nil {
		t.Error(err)
	}
}

// TestForgedPlaces changes each field of a place in device memory.
func TestForgedPlaces(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	src, _ := b.tensor(codec.DTypeUint8, 4096)
	h := b.mustSend(src, lane.Pool)
	b.sync(b.s)
	lease, err := b.store.Local().Take(h)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	const place = 32 // the first, behind the header; see codec/bundle
	for _, c := range []struct {
		name   string
		change func(p []byte)
		want   error
	}{
		{"another arena", func(p []byte) { binary.LittleEndian.PutUint32(p[4:], 77) }, lane.ErrForged},
		{"another slot", func(p []byte) { binary.LittleEndian.PutUint32(p[8:], 1<<30) }, lane.ErrForged},
		{"an old generation", func(p []byte) { binary.LittleEndian.PutUint32(p[12:], 0) }, lane.ErrForged},
		{"a generation to come", func(p []byte) { binary.LittleEndian.PutUint32(p[12:], 5) }, lane.ErrForged},
		{"another device", func(p []byte) { p[16]++ }, lane.ErrForeignDevice},
		{"another pool", func(p []byte) { p[32]++ }, lane.ErrUnavailable},
		{"beyond the arena", func(p []byte) { binary.LittleEndian.PutUint64(p[48:], 1<<40) }, lane.ErrForged},
	} {
		t.Run(c.name, func(t *testing.T) {
			forged := bytes.Clone(lease.Bytes())
			c.change(forged[place:])
			m, err := b.lane.Open(t.Context(), forged)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if m != nil {
				_ = m.Close()
			}
		})
	}
}

// TestTensorsOfAnotherGPU: tensors of another GPU do not go into the lane's pool, because one GPU
// may be unable to write to another's memory.
func TestTensorsOfAnotherGPU(t *testing.T) {
	b := newBench(t, emul.Options{Devices: 2}, lane.Options{})
	other, err := b.lane.Device(emul.UUID(1))
	if err != nil {
		t.Fatal(err)
	}
	p, err := other.Alloc(64)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Free(p) }()
	src := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{64}, Device: emul.UUID(1), Ptr: p}
	h, o, err := b.send(src, lane.Pool, 0, nil)
	if err != nil || o.Mode() != lane.Default {
		t.Fatalf("it travels by %v, %v", o.Mode(), err)
	}
	if err := b.store.Local().Drop(h); err != nil {
		t.Fatal(err)
	}
	if s := b.lane.Stats(); s.Fallbacks != 1 {
		t.Errorf("stats are %+v", s)
	}
}
