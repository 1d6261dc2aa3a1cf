package testbus

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

// GPU is an emulated GPU with a stream.
type GPU struct {
	t      *testing.T
	Driver *emul.Driver
	Dev    cudaipc.Device
	Stream cudaipc.Stream
}

// NewGPU opens a GPU until the end of the test.
func NewGPU(t *testing.T, opts emul.Options) *GPU {
	t.Helper()
	driver, err := emul.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	g := &GPU{t: t, Driver: driver}
	if g.Dev, err = driver.Open(cudaipc.UUID{}); err != nil {
		t.Fatal(err)
	}
	if g.Stream, err = g.Dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(g.Stream.Close(), g.Dev.Close(), g.Driver.Close()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// Options are the options of a bus that uses the GPU.
func (g *GPU) Options(p pool.Options) *bus.GPUOptions {
	return &bus.GPUOptions{Lane: lane.Options{Driver: g.Driver, Pool: p}}
}

// Tensor makes a tensor of n bytes b on the GPU, and the function that frees it.
func (g *GPU) Tensor(n int64, b byte) (*lane.Tensor, func()) {
	p, err := g.Dev.Alloc(n)
	if err != nil {
		panic(err)
	}
	data := bytes.Repeat([]byte{b}, int(n))
	err = g.Stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: p, Src: cudaipc.HostPtr(data), Bytes: n})
	if err == nil {
		err = g.Stream.Synchronize(context.Background())
	}
	runtime.KeepAlive(data) // the stream has read it
	if err != nil {
		panic(err)
	}
	return &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{int(n)}, Ptr: p}, func() { _ = g.Dev.Free(p) }
}

// Check requires that a message has a tensor "x" of n bytes b.
func (g *GPU) Check(ctx context.Context, m *lane.Message, n int64, b byte) error {
	if err := m.Await(g.Stream); err != nil {
		return err
	}
	got := make([]byte, n)
	switch v := m.Value().(map[string]any)["x"].(type) {
	case codec.Tensor:
		copy(got, v.Data)
	case *lane.Tensor:
		if err := g.Stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(got), Src: v.Ptr, Bytes: n}); err != nil {
			return err
		}
		if err := g.Stream.Synchronize(ctx); err != nil {
			return err
		}
	}
	if err := m.Err(); err != nil {
		return err
	}
	if !bytes.Equal(got, bytes.Repeat([]byte{b}, int(n))) {
		return errors.New("other bytes than were sent")
	}
	return nil
}
