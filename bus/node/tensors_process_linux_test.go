package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
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

// tensorBytes is the size of a tensor: two fit into a pool of the tests, and three do not.
const tensorBytes = 200 << 10

func tensorPool() pool.Options { return pool.Options{ArenaBytes: 512 << 10, MaxBytes: 512 << 10} }

// stuck is the duration of a copy that never ends in a test.
const stuck = time.Hour

// machine is an emulated GPU of a process, with a configurable delay of copies.
type machine struct {
	driver *emul.Driver
	dev    cudaipc.Device
	stream cudaipc.Stream
	delay  atomic.Int64 // of copies
}

func newMachine(missing map[string]string) (*machine, error) {
	m := &machine{}
	var err error
	m.driver, err = emul.New(emul.Options{GranularityBytes: 1 << 16, Apart: true, Missing: missing, Delay: func(s emul.Step) time.Duration {
		if s.Kind == cudaipc.OpCopy {
			return time.Duration(m.delay.Load())
		}
		return 0
	}})
	if err != nil {
		return nil, err
	}
	if m.dev, err = m.driver.Open(cudaipc.UUID{}); err != nil {
		return nil, err
	}
	m.stream, err = m.dev.NewStream()
	return m, err
}

// mustMachine is a machine of the test process.
func mustMachine(t *testing.T) *machine {
	t.Helper()
	m, err := newMachine(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(m.stream.Close(), m.dev.Close())
		if u := m.driver.Usage(); u.Arenas+u.Imports+u.HostMemories+u.Streams+u.Events > 0 {
			t.Errorf("left on the GPU: %+v", u)
		}
		if err = errors.Join(err, m.driver.Close()); err != nil && !errors.Is(err, cudaipc.ErrSticky) {
			t.Error(err)
		}
	})
	return m
}

func (m *machine) join() node.JoinOptions {
	return node.JoinOptions{
		Store: shmstore.Options{ArenaBytes: 16 << 20},
		GPU:   &bus.GPUOptions{Lane: lane.Options{Driver: m.driver, Pool: tensorPool()}, WhenFull: bus.WaitForSpace},
	}
}

// The last byte of an input.
const (
	plainly    = iota
	stuckMade  // the tensor is never complete
	stuckRead  // it is never read to the end
	inputBytes = 9
)

func input(number int, how byte) []byte {
	return append(binary.LittleEndian.AppendUint64(nil, uint64(number)), how)
}

// filling is the content of a tensor; every eight bytes depend on its number.
func filling(number uint64) []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, number*0x9e3779b97f4a7c15), tensorBytes/8)
}

// making is a stage that makes a tensor for each input.
func making(name string, m *machine) bus.StageSpec {
	return bus.StageSpec{Name: name, State: bus.StateRequest, Handle: func(t *bus.Task, d *bus.Delivery) error {
		in := bytes.Clone(d.Bytes())
		number := binary.LittleEndian.Uint64(in)
		p, err := m.dev.Alloc(tensorBytes)
		if err != nil {
			return err
		}
		if in[inputBytes-1] == stuckMade {
			m.delay.Store(int64(stuck))
		}
		data := filling(number)
		if err := m.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: p, Src: cudaipc.HostPtr(data), Bytes: tensorBytes}); err != nil {
			return err
		}
		x := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{tensorBytes}, Ptr: p}
		return t.EmitTensors(map[string]any{"x": x, "number": int64(number), "how": int64(in[inputBytes-1])},
			bus.TensorOptions{Stream: m.stream, Release: func() {
				runtime.KeepAlive(data) // the stream has read it
				_ = m.dev.Free(p)
			}})
	}}
}

// reading is a stage that checks the bytes of each tensor.
func reading(name string, m *machine) bus.StageSpec {
	return bus.StageSpec{Name: name, State: bus.StateRequest, Handle: func(t *bus.Task, d *bus.Delivery) error {
		msg, err := d.Tensors(t.Context())
		if err != nil {
			return err
		}
		v := msg.Value().(map[string]any)
		if v["how"] == int64(stuckRead) {
			m.delay.Store(int64(stuck))
			if err := t.Emit("reading"); err != nil {
				return err
			}
		}
		number, _ := v["number"].(int64)
		if err := m.checkTensor(t.Context(), msg, filling(uint64(number))); err != nil {
			return err
		}
		return t.Emit(fmt.Sprint("well ", number))
	}}
}

// checkTensor compares the tensor of a message.
func (m *machine) checkTensor(ctx context.Context, msg *lane.Message, want []byte) error {
	if err := msg.Await(m.stream); err != nil {
		return err
	}
	got := make([]byte, len(want))
	switch x := msg.Value().(map[string]any)["x"].(type) {
	case codec.Tensor:
		copy(got, x.Data)
	case *lane.Tensor:
		if err := m.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(got), Src: x.Ptr, Bytes: x.Bytes()}); err != nil {
			return err
		}
		if err := m.stream.Synchronize(ctx); err != nil {
			return err
		}
	}
	if err := msg.Err(); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("other bytes than were sent")
	}
	return nil
}

func init() {
	serve := func(opts func(*machine) node.JoinOptions, spec func(name string, m *machine) bus.StageSpec, missing ...string) func() {
		return func() {
			without := make(map[string]string)
			for _, field := range missing {
				without[field] = "for a test"
			}
			m, err := newMachine(without)
			var n *node.Node
			if err == nil {
				n, err = node.Join(context.Background(), "child", opts(m))
			}
			if err == nil {
				err = n.Serve(context.Background(), spec(os.Getenv(node.EnvStage), m))
			}
			fmt.Fprintln(os.Stderr, "child:", err)
		}
	}
	roles["make tensors"] = serve((*machine).join, making)
	roles["read tensors"] = serve((*machine).join, reading)
	roles["make tensors without arenas"] = serve((*machine).join, making, "Arenas")
}

// serveOn serves a stage with a node that has a GPU.
func (h *hosted) serveOn(t *testing.T, m *machine, spec bus.StageSpec) *node.Node {
	t.Helper()
	n := h.join(t, m.join())
	go func() { _ = n.Serve(context.Background(), spec) }() // ends with the node
	return n
}

// tensorLine is a pipeline of stages, each in another process.
func tensorLine(transport bus.TensorTransport, names ...string) bus.Pipeline {
	var p bus.Pipeline
	for i, name := range names {
		p.Stages = append(p.Stages, bus.StageSpec{Name: name, Remote: &bus.Remote{}, State: bus.StateRequest})
		if i > 0 {
			p.Edges = append(p.Edges, bus.Edge{From: names[i-1], To: name, Tensors: transport, Window: 8, WindowBytes: 1 << 20})
		}
	}
	return p
}

// trip sends an input and returns its result.
func trip(t *testing.T, r *bus.Request, number int, how byte) (string, error) {
	t.Helper()
	if err := r.Input(t.Context()).EmitBytes(input(number, how)); err != nil {
		return "", err
	}
	d, err := r.Recv(t.Context())
	if err != nil {
		return "", err
	}
	s, err := bus.Result[string](d)
	return strings.Clone(s), errors.Join(err, d.Finish(nil))
}

func mustTrip(t *testing.T, r *bus.Request, numbers int) {
	t.Helper()
	for i := range numbers {
		if got, err := trip(t, r, i, plainly); err != nil || got != fmt.Sprint("well ", i) {
			t.Fatalf("tensor %d: %q, %v", i, got, err)
		}
	}
}

var transports = []bus.TensorTransport{bus.TensorsDefault, bus.TensorsIPC, bus.TensorsPool}

// TestTensorsBetweenProcesses has one process make tensors, one without a GPU forward them, and one
// read them. Tensors in host memory go through the host first, and then on the direct path. Tensors
// in GPU memory cannot be copied where they are forwarded, and keep going through the host.
func TestTensorsBetweenProcesses(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.String(), func(t *testing.T) {
			h := listen(t, tensorLine(transport, "make", "pass", "read"), tensorHost())
			h.childAs(t, "make tensors", "make")
			pass := h.childAs(t, "forward", "pass")
			h.childAs(t, "read tensors", "read")
			r := testbus.StreamOf(t, h.bus)
			mustTrip(t, r, warmup+20)
			if n := directOf(h, pass.Process.Pid); (n > 0) != (transport == bus.TensorsDefault) {
				t.Errorf("%d streams take the direct path", n)
			}
		})
	}
}

// TestTensorsOfHandles has a process make tensors on a GPU without memory that descriptors can
// share: its pool is opened by handles, in two processes after each other.
func TestTensorsOfHandles(t *testing.T) {
	h := listen(t, tensorLine(bus.TensorsPool, "make", "read"), tensorHost())
	m := mustMachine(t)
	h.serveOn(t, m, reading("read", m))
	for range 2 {
		child := h.childAs(t, "make tensors without arenas", "make")
		r := testbus.StreamOf(t, h.bus)
		mustTrip(t, r, warmup+20)
		if n := m.driver.Usage().Imports; n == 0 {
			t.Error("no memory is opened by a handle")
		}
		kill(t, child)
		wantDied(t, r.Wait(t.Context()), "make", child)
		r.Close()
	}
	if u := m.driver.Usage(); u.Imports != 1 {
		t.Errorf("%d handles are open, want the one of the process that died last", u.Imports)
	}
}

// TestTensorConsumerDies kills a process while it reads. The memory that it read is free: two
// messages fill the pool, and later ones arrive unchanged.
func TestTensorConsumerDies(t *testing.T) {
	for _, transport := range transports[1:] {
		for _, before := range []int{3, warmup} {
			t.Run(fmt.Sprint(transport, " after ", before), func(t *testing.T) {
				h := listen(t, tensorLine(transport, "make", "read"), tensorHost())
				m := mustMachine(t)
				h.serveOn(t, m, making("make", m))
				for range 3 {
					child := h.childAs(t, "read tensors", "read")
					r := testbus.StreamOf(t, h.bus)
					mustTrip(t, r, before)
					if got, err := trip(t, r, before, stuckRead); err != nil || got != "reading" {
						t.Fatalf("%q, %v", got, err)
					}
					kill(t, child)
					wantDied(t, r.Wait(t.Context()), "read", child)
					r.Close()
				}
				h.childAs(t, "read tensors", "read")
				mustTrip(t, testbus.StreamOf(t, h.bus), 10)
			})
		}
	}
}

// TestTensorProducerDies kills a process whose sent tensors are incomplete. Its readers get
// ErrPoisoned, from streams and from calls.
func TestTensorProducerDies(t *testing.T) {
	for _, transport := range transports[1:] {
		for _, before := range []int{3, warmup} {
			t.Run(fmt.Sprint(transport, " after ", before), func(t *testing.T) {
				h := listen(t, tensorLine(transport, "make", "read"), tensorHost())
				m := mustMachine(t)
				began, told := make(chan struct{}), make(chan error)
				inner := reading("read", m)
				spec := inner
				spec.Handle = func(task *bus.Task, d *bus.Delivery) error {
					msg, err := d.Tensors(task.Context())
					if err != nil || msg.Value().(map[string]any)["how"] == int64(plainly) {
						return inner.Handle(task, d)
					}
					if err = msg.Await(m.stream); err == nil {
						close(began)
						err = m.stream.Synchronize(context.Background())
					}
					told <- errors.Join(err, msg.Err())
					return nil
				}
				h.serveOn(t, m, spec)
				child := h.childAs(t, "make tensors", "make")
				r := testbus.StreamOf(t, h.bus)
				mustTrip(t, r, before)
				if err := r.Input(t.Context()).EmitBytes(input(before, stuckMade)); err != nil {
					t.Fatal(err)
				}
				<-began
				kill(t, child)
				if err := <-told; !errors.Is(err, lane.ErrPoisoned) {
					t.Errorf("the reader is told %v, want ErrPoisoned", err)
				}
				wantDied(t, r.Wait(t.Context()), "make", child)
				h.childAs(t, "make tensors", "make")
				mustTrip(t, testbus.StreamOf(t, h.bus), 5)
			})
		}
	}
}

func tensorHost() bus.Options { return bus.Options{Store: shmstore.Options{ArenaBytes: 32 << 20}} }
