package node_test

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// readTensors is a pipeline whose first stage sends tensors to a Python process.
func readTensors(first bus.StageSpec, transport bus.TensorTransport) bus.Pipeline {
	return bus.Pipeline{
		Stages: []bus.StageSpec{first, {Name: "reader", Remote: &bus.Remote{}}},
		Edges:  []bus.Edge{{From: first.Name, To: "reader", Tensors: transport}},
	}
}

// number sends an input whose byte fills the tensor of its message.
func number(t *testing.T, r *bus.Request, b byte) {
	t.Helper()
	if err := r.Send(t.Context(), []byte{b}); err != nil {
		t.Fatal(err)
	}
}

func crcOf(b byte, n int) uint32 { return crc32.ChecksumIEEE(bytes.Repeat([]byte{b}, n)) }

// TestTensorsToPython: Python reads a producer's tensors in place, and they stay while Python reads
// them.
func TestTensorsToPython(t *testing.T) {
	const n, messages = 100 << 10, 24
	for _, c := range []struct {
		name      string
		transport bus.TensorTransport
		missing   map[string]string
	}{
		{"cuda_ipc_pool", bus.TensorsPool, nil},
		{"cuda_ipc", bus.TensorsIPC, nil},
		{"cuda_ipc_pool by handles", bus.TensorsPool, map[string]string{"Arenas": "for a test"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16, Missing: c.missing})
			first := bus.StageSpec{Name: "first", Handle: func(t *bus.Task, d *bus.Delivery) error {
				src, free := g.Tensor(n, d.Bytes()[len(d.Bytes())-1])
				return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: free})
			}}
			h := listen(t, readTensors(first, c.transport), bus.Options{
				GPU: g.Options(pool.Options{ArenaBytes: 512 << 10, MaxBytes: 512 << 10}),
			})
			p := h.pythonAs(t, "testdata/tensors.py")
			r := testbus.StreamOf(t, h.bus)
			number(t, r, 200)
			number(t, r, 201)
			for i := 200; i < 202; i++ {
				p.do("take", args{"n": i}, []any{"uint8", []int{n}, "emul"})
				p.do("view", args{"n": i}, crcOf(byte(i), n))
				p.do("finish", args{"n": i}, nil)
			}
			// The pool has space for a few messages: freed space is used again.
			for i := range messages {
				number(t, r, byte(i))
				p.do("take", args{"n": i}, []any{"uint8", []int{n}, "emul"})
				p.do("view", args{"n": i}, crcOf(byte(i), n))
				for _, do := range [][]string{{"drop", "finish"}, {"finish", "drop"}}[i%2] {
					p.do(do, args{"n": i}, nil)
				}
			}
			for i := 200; i < 202; i++ {
				p.do("look", args{"n": i}, crcOf(byte(i), n))
			}
			p.do("drop", args{"n": 200}, nil)
			p.do("drop", args{"n": 201}, nil)
		})
	}
}

// TestBufferIsBackWithTheLastView: a sender's own buffer is released when Python drops the last
// view, long after the delivery was finished.
func TestBufferIsBackWithTheLastView(t *testing.T) {
	const n = 4 << 10
	g := testbus.NewGPU(t, emul.Options{})
	back := make(chan struct{})
	first := bus.StageSpec{Name: "first", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		src, free := g.Tensor(n, 7)
		return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: func() {
			free()
			close(back)
		}})
	}}
	h := listen(t, readTensors(first, bus.TensorsIPC), bus.Options{GPU: g.Options(pool.Options{})})
	p := h.pythonAs(t, "testdata/tensors.py")
	number(t, testbus.StreamOf(t, h.bus), 0)
	p.do("take", args{"n": 0}, []any{"uint8", []int{n}, "emul"})
	p.do("view", args{"n": 0}, crcOf(7, n))
	p.do("finish", args{"n": 0}, nil)
	p.do("look", args{"n": 0}, crcOf(7, n))
	select {
	case <-back:
		t.Error("the buffer was given back while it was being read")
	default:
	}
	p.do("drop", args{"n": 0}, nil)
	<-back
}

// TestStridedTensorToPython: a strided view of the producer's own buffer arrives with its shape and
// bytes.
func TestStridedTensorToPython(t *testing.T) {
	g := testbus.NewGPU(t, emul.Options{})
	first := bus.StageSpec{Name: "first", Handle: func(t *bus.Task, _ *bus.Delivery) error {
		src, free := g.Tensor(24, 0)
		data := make([]byte, 24)
		for i := range data {
			data[i] = byte(i)
		}
		if err := g.Stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: src.Ptr, Src: cudaipc.HostPtr(data), Bytes: 24}); err != nil {
			return err
		}
		if err := g.Stream.Synchronize(t.Context()); err != nil {
			return err
		}
		runtime.KeepAlive(data) // the stream has read it
		src.Shape, src.Strides, src.DType = []int{2, 3}, []int{1, 4}, codec.DTypeInt16
		return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: free})
	}}
	want := []byte{0, 1, 8, 9, 16, 17, 2, 3, 10, 11, 18, 19}
	for _, transport := range []bus.TensorTransport{bus.TensorsPool, bus.TensorsIPC} {
		t.Run(transport.String(), func(t *testing.T) {
			h := listen(t, readTensors(first, transport), bus.Options{GPU: g.Options(pool.Options{})})
			p := h.pythonAs(t, "testdata/tensors.py")
			number(t, testbus.StreamOf(t, h.bus), 0)
			p.do("take", args{"n": 0}, []any{"int16", []int{2, 3}, "emul"})
			p.do("view", args{"n": 0}, crc32.ChecksumIEEE(want))
			p.do("drop", args{"n": 0}, nil)
			p.do("finish", args{"n": 0}, nil)
		})
	}
}

func init() {
	roles["tensors"] = func() {
		var stuck atomic.Bool
		err := sendTensors(emul.Options{Delay: func(s emul.Step) time.Duration {
			if s.Kind == cudaipc.OpCopy && stuck.Load() {
				return time.Hour
			}
			return 0
		}}, &stuck)
		fmt.Fprintln(os.Stderr, "child:", err)
	}
}

// sendTensors serves a stage that sends tensors, whose copies never end from the second message on.
func sendTensors(opts emul.Options, stuck *atomic.Bool) error {
	driver, err := emul.New(opts)
	if err != nil {
		return err
	}
	dev, err := driver.Open(cudaipc.UUID{})
	if err != nil {
		return err
	}
	stream, err := dev.NewStream()
	if err != nil {
		return err
	}
	g := &testbus.GPU{Driver: driver, Dev: dev, Stream: stream}
	n, err := node.Join(context.Background(), "child", node.JoinOptions{GPU: &bus.GPUOptions{Lane: lane.Options{Driver: driver}}})
	if err != nil {
		return err
	}
	return n.Serve(context.Background(), bus.StageSpec{Name: os.Getenv(node.EnvStage), Handle: func(t *bus.Task, d *bus.Delivery) error {
		src, free := g.Tensor(5000, 7)
		stuck.Store(d.Seq > 0)
		return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: free})
	}})
}

// TestTensorProducerOfPythonDies: after the death of a producer its complete tensors stay readable
// in Python, and a wait for the others ends.
func TestTensorProducerOfPythonDies(t *testing.T) {
	h := listen(t, readTensors(bus.StageSpec{Name: "first", Remote: &bus.Remote{}}, bus.TensorsPool), bus.Options{
		Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared},
	})
	cmd := h.childAs(t, "tensors", "first")
	p := h.pythonAs(t, "testdata/tensors.py")
	r := testbus.StreamOf(t, h.bus)
	number(t, r, 0)
	p.do("take", args{"n": 0}, []any{"uint8", []int{5000}, "emul"})
	p.do("view", args{"n": 0}, crcOf(7, 5000))
	number(t, r, 0)
	p.do("take", args{"n": 1}, []any{"uint8", []int{5000}, "emul"})
	p.do("wait", args{"n": 1}, "waiting")
	kill(t, cmd)
	p.want("Poisoned")
	p.do("view", args{"n": 1}, "Poisoned")
	p.do("look", args{"n": 0}, crcOf(7, 5000))
	for i := range 2 {
		p.do("finish", args{"n": i}, nil)
	}
	p.do("drop", args{"n": 0}, nil)
}
