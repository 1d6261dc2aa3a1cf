package node_test

import (
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

func init() {
	roles["host of a tensor stage"] = hosting(bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "read", Remote: &bus.Remote{}, State: bus.StateRequest}},
		Edges:  []bus.Edge{{To: "read", Tensors: bus.TensorsPool, Window: 8, WindowBytes: 1 << 20}},
	}, tensorHost())
}

// TestTensorsWhenHostIsStopped: an emission that has to publish memory waits for a stopped host
// only until its context ends. It leaves nothing behind, and the next one uses the pool.
func TestTensorsWhenHostIsStopped(t *testing.T) {
	h, cmd := hostAloneAs(t, "host of a tensor stage")
	host := cmd.Process
	m, reader := mustMachine(t), mustMachine(t)
	opts := m.join()
	opts.GPU.Lane.Pool = pool.Options{ArenaBytes: 512 << 10, MaxBytes: 1 << 20} // two tensors in each
	n := h.join(t, opts)
	spec, kept := keeping("read")
	spec.State = bus.StateRequest
	h.serveOn(t, reader, spec)
	r := testbus.StreamOf(t, n)
	released := make(chan struct{}, 1)
	emit := func(ctx context.Context, number int) error {
		p, err := m.dev.Alloc(tensorBytes)
		if err != nil {
			return err
		}
		if err := m.write(p, filling(uint64(number))); err != nil {
			return err
		}
		x := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{tensorBytes}, Ptr: p}
		return r.Input(ctx).EmitTensors(map[string]any{"x": x}, bus.TensorOptions{Release: func() {
			_ = m.dev.Free(p)
			released <- struct{}{}
		}})
	}
	defer mustContinue(t, host) // nodes wait for it when they close
	var held []*bus.Kept
	for _, names := range []int{0, 2} { // the pool's first publication, and then another arena
		stopProcess(t, host)
		for range 2 {
			ctx, cancel := context.WithCancel(t.Context())
			sent := make(chan error)
			go func() { sent <- emit(ctx, 100) }()
			testbus.Await(t, func() bool {
				select {
				case err := <-sent:
					t.Fatalf("with %d names of %d the emission ended before its context: %v", node.PublishedCount(n), names, err)
				default:
				}
				return node.PublishedCount(n) > names
			})
			cancel()
			if err := <-sent; !errors.Is(err, bus.ErrCanceled) {
				t.Fatalf("with %d names the emission ended with %v, want errCanceled", names, err)
			}
			<-released
			if left := node.PublishedCount(n); left != names {
				t.Errorf("%d names are left of %d", left, names)
			}
		}
		mustContinue(t, host)
		for range 2 {
			if err := emit(t.Context(), len(held)); err != nil {
				t.Fatal(err)
			}
			<-released
			k := <-kept
			reader.wantTensor(t, k, uint64(len(held)), true)
			held = append(held, k)
		}
	}
	for _, k := range held {
		mustFinish(t, k)
	}
}

// TestTensorDeadlineWhenHostIsStopped: with a stopped host, a stage that has to publish memory
// waits only until the deadline of its request, although the host does not report the deadline.
func TestTensorDeadlineWhenHostIsStopped(t *testing.T) {
	maker, reader := mustMachine(t), mustMachine(t)
	inner := making("make", maker)
	waitsPastDeadline(t, inner, maker, reading("read", reader), reader, inner.Handle)
}

// TestTensorFindWhenHostIsStopped: a stage that opens tensors in memory it has to find waits for a
// stopped host only until the deadline of its request, and can open later tensors.
func TestTensorFindWhenHostIsStopped(t *testing.T) {
	maker, reader := mustMachine(t), mustMachine(t)
	waitsPastDeadline(t, reading("read", reader), reader, making("make", maker), maker, func(t *bus.Task, d *bus.Delivery) error {
		_, err := d.Tensors(t.Context())
		return err
	})
}

// waitsPastDeadline stops the host, and then runs waits in a stage, in a request with a deadline.
// For requests without a deadline the stage runs its own handler.
func waitsPastDeadline(t *testing.T, spec bus.StageSpec, m *machine, other bus.StageSpec, its *machine, waits func(*bus.Task, *bus.Delivery) error) {
	t.Helper()
	h, cmd := hostAloneAs(t, "tensor host")
	host := cmd.Process
	began, stopped, told := make(chan struct{}), make(chan bool), make(chan error, 1)
	usual := spec.Handle
	spec.Handle = func(t *bus.Task, d *bus.Delivery) error {
		if _, limited := t.Context().Deadline(); !limited {
			return usual(t, d)
		}
		if err := waitForStop(t, began, stopped); err != nil {
			return err
		}
		err := waits(t, d)
		told <- err
		return err
	}
	h.serveOn(t, its, other)
	h.serveOn(t, m, spec)
	caller := h.join(t, node.JoinOptions{})
	defer mustContinue(t, host) // nodes wait for it when they close
	r := stopHostInRequest(t, caller, host, began, stopped, input(1, plainly))
	if err := <-told; !errors.Is(err, bus.ErrDeadline) {
		t.Errorf("the stage's wait ended with %v, want ErrDeadline", err)
	}
	mustContinue(t, host)
	if err := r.Wait(t.Context()); !errors.Is(err, bus.ErrDeadline) {
		t.Errorf("the request ended with %v, want ErrDeadline", err)
	}
	again := testbus.StreamOf(t, caller)
	mustTrip(t, again, 1)
}

// write fills memory of the GPU.
func (m *machine) write(p cudaipc.Ptr, data []byte) error {
	err := m.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: p, Src: cudaipc.HostPtr(data), Bytes: int64(len(data))})
	if err != nil {
		return err
	}
	return m.stream.Synchronize(context.Background())
}
