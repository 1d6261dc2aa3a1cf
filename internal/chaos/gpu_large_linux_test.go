package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// largeTensor is the size of the largest tensor. Tensors are larger than an object of the arena
// of largeStore may be, and get segments of their own, of which two fit into MaxLargeBytes. Each
// size is three quarters of the one before, which is too small to reuse its segment, and there are
// more sizes than segments fit: mostly no segment of a size is left when the next tensor of that
// size comes.
const (
	largeTensor = 512 << 10
	largeSizes  = 12
)

func largeBytes(i int) int {
	n := largeTensor
	for range i % largeSizes {
		n = n * 3 / 4
	}
	return n
}

var largeStore = shmstore.Options{ArenaBytes: 16 << 20, LargeObjectBytes: 16 << 10, MaxLargeBytes: 2 * (largeTensor + 8<<10), Memory: shmstore.Shared}

// TestLargeTensors sends tensors through segments of host memory that are made and removed
// with each tensor. Each segment is registered with the GPU, and unregistered before it is
// unmapped: the stand-in for CUDA's library checks that, and an emulated GPU refuses memory
// that is registered already.
func TestLargeTensors(t *testing.T) {
	t.Setenv(driverEnv, *gpuDriver)
	g := &gpu{}
	if err := g.open(); err != nil {
		t.Fatal(err)
	}
	const messages = 50
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "make", Handle: g.makeLarge}, {Name: "read", Handle: g.readLarge}},
		Edges:  []bus.Edge{{From: "make", To: "read", Tensors: bus.TensorsDefault, Window: 2, WindowBytes: 2 * (largeTensor + 4<<10)}},
	}, bus.Options{Store: largeStore, MaxRequests: 1, GPU: &bus.GPUOptions{Lane: lane.Options{Driver: g.driver}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, err := b.Submit(t.Context(), messages)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, err := range r.Results(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		if n != messages {
			t.Errorf("%d tensors arrived, of %d", n, messages)
		}
		// A request that is closed early leaves tensors in transit.
		r, err = b.Submit(t.Context(), messages)
		if err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	// Some may have found no space in time, and used the heap.
	if s := b.Stats().Tensors; s.Registered < messages || s.Refused != 0 {
		t.Errorf("%+v", s)
	}
	if err := errors.Join(b.Close(context.Background()), g.close()); err != nil {
		t.Error(err)
	}
}

// makeLarge sends as many tensors as its input says, each filled with its number.
func (g *gpu) makeLarge(t *bus.Task, d *bus.Delivery) error {
	var messages int
	if err := d.Decode(&messages); err != nil {
		return err
	}
	for i := range messages {
		p, err := g.filled(byte(i))
		if err != nil {
			return err
		}
		x := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{largeBytes(i)}, Ptr: p}
		if err := t.EmitTensors([]any{i, x}, bus.TensorOptions{Release: func() { _ = g.dev.Free(p) }}); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpu) filled(b byte) (cudaipc.Ptr, error) {
	p, err := g.dev.Alloc(largeTensor)
	if err != nil {
		return 0, err
	}
	data := bytes.Repeat([]byte{b}, largeTensor)
	err = g.copy(p, cudaipc.HostPtr(data))
	runtime.KeepAlive(data) // the stream has read it
	return p, err
}

func (g *gpu) copy(dst, src cudaipc.Ptr) error {
	s, err := g.dev.NewStream()
	if err != nil {
		return err
	}
	err = s.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: dst, Src: src, Bytes: largeTensor})
	return errors.Join(err, s.Synchronize(context.Background()), s.Close())
}

// readLarge copies a tensor to the GPU again, and checks it.
func (g *gpu) readLarge(t *bus.Task, d *bus.Delivery) error {
	m, err := d.Tensors(t.Context())
	if err != nil {
		return err
	}
	p, err := g.dev.Alloc(largeTensor)
	if err != nil {
		return err
	}
	defer func() { _ = g.dev.Free(p) }()
	v, err := m.Unwrap(g.stream, cudaipc.UUID{}, func(int64) (cudaipc.Ptr, error) { return p, nil })
	if err == nil {
		err = g.stream.Synchronize(context.Background())
	}
	if err != nil {
		return err
	}
	got := make([]byte, largeTensor)
	if err := g.copy(cudaipc.HostPtr(got), p); err != nil {
		return err
	}
	want := v.([]any)[0].(int64)
	if n := largeBytes(int(want)); !bytes.Equal(got[:n], bytes.Repeat([]byte{byte(want)}, n)) {
		return fmt.Errorf("%w: tensor %d has other bytes, in process %d", errBroken, want, os.Getpid())
	}
	return t.EmitBytes([]byte("well"))
}
