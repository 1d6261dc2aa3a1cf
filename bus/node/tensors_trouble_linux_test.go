package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	roles["tensor host"] = hosting(tensorLine(bus.TensorsPool, "make", "read"), tensorHost())
}

// telling is a stage that waits in a stream for a tensor. It signals the beginning of the wait, and
// then its result.
func telling(m *machine) (spec bus.StageSpec, began chan struct{}, told chan error) {
	began, told = make(chan struct{}, 1), make(chan error, 1)
	return bus.StageSpec{Name: "read", State: bus.StateRequest, Handle: func(t *bus.Task, d *bus.Delivery) error {
		msg, err := d.Tensors(t.Context())
		if err == nil {
			err = msg.Await(m.stream)
		}
		began <- struct{}{}
		if err == nil {
			err = m.stream.Synchronize(context.Background())
		}
		if err == nil {
			err = msg.Err()
		}
		told <- err
		return err
	}}, began, told
}

// TestTensorHostDies kills the host during the copy of a tensor: the copy ends, requests fail, and
// nodes leave nothing on their GPUs.
func TestTensorHostDies(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	host := h.childAs(t, "tensor host", "")
	testbus.Await(t, func() bool {
		n, err := node.Join(t.Context(), "first", node.JoinOptions{Socket: h.path})
		return err == nil && n.Close(t.Context()) == nil
	})
	maker, reader := mustMachine(t), mustMachine(t)
	h.serveOn(t, maker, making("make", maker))
	spec, began, told := telling(reader)
	h.serveOn(t, reader, spec)
	r := testbus.StreamOf(t, h.join(t, node.JoinOptions{}))
	maker.delay.Store(int64(100 * time.Millisecond))
	if err := r.Input(t.Context()).EmitBytes(input(1, plainly)); err != nil {
		t.Fatal(err)
	}
	<-began
	kill(t, host)
	if err := <-told; err != nil {
		t.Errorf("the reader, whose producer lives: %v", err)
	}
	if err := r.Wait(t.Context()); !errors.Is(err, bus.ErrHostGone) {
		t.Errorf("the request ended with %v, want ErrHostGone", err)
	}
}

// reasons is a log handler that collects why processes are gone.
type reasons chan string

func (r reasons) Enabled(context.Context, slog.Level) bool { return true }
func (r reasons) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r reasons) WithGroup(string) slog.Handler            { return r }

func (r reasons) Handle(_ context.Context, record slog.Record) error {
	record.Attrs(func(a slog.Attr) bool {
		if a.Key == "reason" && record.Message == "a process is gone" {
			r <- a.Value.String()
		}
		return true
	})
	return nil
}

// TestTensorGPUFails breaks the producer's GPU during a copy: reader and producer get errors, and
// tensors in host memory still travel.
func TestTensorGPUFails(t *testing.T) {
	for _, transport := range transports[2:] {
		t.Run(transport.String(), func(t *testing.T) {
			opts := tensorHost()
			left := make(reasons, 10)
			opts.Logger = slog.New(left)
			h := listen(t, tensorLine(transport, "make", "read"), opts)
			m := mustMachine(t)
			broken := errors.New("a fault")
			tries := make(chan error, 1)
			inner := making("make", m)
			spec := inner
			spec.Handle = func(task *bus.Task, d *bus.Delivery) error {
				if m.dev.Err() == nil {
					return inner.Handle(task, d)
				}
				x := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{tensorBytes}, Ptr: 1 << 20}
				tries <- task.EmitTensors(map[string]any{"x": x}, bus.TensorOptions{})
				plain := codec.Tensor{DType: codec.DTypeUint8, Shape: []int{tensorBytes}, Data: filling(7)}
				return task.EmitTensors(map[string]any{"x": plain, "number": int64(7)}, bus.TensorOptions{})
			}
			n, err := node.Join(t.Context(), t.Name(), m.joinAt(h.path))
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := n.Close(context.Background()); !errors.Is(err, cudaipc.ErrSticky) {
					t.Errorf("close the node: %v, want ErrSticky", err)
				}
				// The node uses no memory of the host any more: the host does not wait for its death.
				if reason := <-left; !strings.HasSuffix(reason, "left") {
					t.Errorf("the host says of the node: %s", reason)
				}
			}()
			go func() { _ = n.Serve(context.Background(), spec) }()
			reader := mustMachine(t)
			reads, began, told := telling(reader)
			h.serveOn(t, reader, reads)
			m.delay.Store(int64(stuck))
			r := testbus.StreamOf(t, h.bus)
			if err := r.Input(t.Context()).EmitBytes(input(1, stuckMade)); err != nil {
				t.Fatal(err)
			}
			<-began
			if err := m.driver.Break(m.dev.Caps().Device, broken); err != nil {
				t.Fatal(err)
			}
			if err := <-told; !errors.Is(err, lane.ErrPoisoned) {
				t.Errorf("the reader is told %v, want ErrPoisoned", err)
			}
			_ = r.Wait(t.Context())
			again := testbus.StreamOf(t, h.bus)
			if err := again.Input(t.Context()).EmitBytes(input(7, plainly)); err != nil {
				t.Fatal(err)
			}
			if err := <-tries; !errors.Is(err, cudaipc.ErrSticky) {
				t.Errorf("the producer is told %v, want ErrSticky", err)
			}
			<-began
			if err := <-told; err != nil {
				t.Errorf("host memory: %v", err)
			}
		})
	}
}

// TestTensorPoolFull fills a pool with kept messages, and sends one more.
func TestTensorPoolFull(t *testing.T) {
	for _, c := range []struct {
		name string
		when bus.WhenFull
	}{{"spill", bus.SpillToHost}, {"wait", bus.WaitForSpace}, {"fail", bus.FailWhenFull}} {
		t.Run(c.name, func(t *testing.T) {
			h := listen(t, tensorLine(bus.TensorsPool, "make", "read"), tensorHost())
			maker, reader := mustMachine(t), mustMachine(t)
			opts := maker.join()
			opts.GPU.WhenFull = c.when
			n := h.join(t, opts)
			go func() { _ = n.Serve(context.Background(), making("make", maker)) }()
			spec, kept := keeping("read")
			spec.State = bus.StateRequest
			h.serveOn(t, reader, spec)
			r := testbus.StreamOf(t, h.bus)
			send := func(i int) {
				if err := r.Input(t.Context()).EmitBytes(input(i, plainly)); err != nil {
					t.Fatal(err)
				}
			}
			send(0)
			send(1)
			held := []*bus.Kept{<-kept, <-kept}
			send(2) // sent after the others are kept, since its failure would overtake them
			switch c.when {
			case bus.FailWhenFull:
				if err := r.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), lane.ErrPoolFull.Error()) {
					t.Errorf("the request ended with %v, want ErrPoolFull", err)
				}
			case bus.WaitForSpace:
				reader.wantTensor(t, held[0], 0, true)
				wantSpaceStall(t, n, r)
				mustFinish(t, held[0])
				held[0] = <-kept
				reader.wantTensor(t, held[0], 2, true)
			default:
				reader.wantTensor(t, held[0], 0, true)
				held = append(held, <-kept)
				reader.wantTensor(t, held[2], 2, false)
			}
			for _, k := range held {
				_ = k.Finish(nil)
			}
		})
	}
}

// wantSpaceStall waits for the report of an emission that waits for space in a pool. The report
// names the holders of the pool's messages.
func wantSpaceStall(t *testing.T, n *node.Node, r *bus.Request) {
	t.Helper()
	for t.Context().Err() == nil {
		answer, err := n.Call(t.Context(), "stalls", nil)
		if err != nil {
			t.Fatal(err)
		}
		var stalls []bus.Stall
		if err := json.Unmarshal(answer, &stalls); err != nil {
			t.Fatal(err)
		}
		for _, s := range stalls {
			if !strings.Contains(s.Holder, "the GPU has no room") {
				continue
			}
			process := fmt.Sprintf("process %d", os.Getpid())
			what := fmt.Sprintf("deliveries under way: 2 of request %v on edge make->read (%s ", r.ID(), process)
			if s.Request != r.ID() || s.Edge != "make->read" || s.Waited <= 0 || !strings.Contains(s.Holder, "in use in 2 pieces") ||
				!strings.Contains(s.Holder, process) || !strings.Contains(s.Holder, what) {
				t.Errorf("report: %v", s)
			}
			return
		}
	}
	t.Error("no emission is reported to wait for space")
}

// TestSpaceStall: in one process the report of an emission that waits for space comes by OnStall.
func TestSpaceStall(t *testing.T) {
	m := mustMachine(t)
	reports := make(chan []bus.Stall)
	spec, kept := keeping("read")
	spec.State = bus.StateRequest
	b := testbus.Open(t, bus.Pipeline{
		Stages: []bus.StageSpec{making("make", m), spec},
		Edges:  []bus.Edge{{From: "make", To: "read", Tensors: bus.TensorsPool, Window: 8, WindowBytes: 1 << 20}},
	}, bus.Options{
		Store: shmstore.Options{ArenaBytes: 32 << 20}, GPU: m.join().GPU,
		StallTimeout: time.Millisecond, OnStall: func(s []bus.Stall) {
			select {
			case reports <- s:
			default: // the bus must not block: it closes only after this call
			}
		},
	})
	r := testbus.StreamOf(t, b)
	for i := range 3 {
		if err := r.Input(t.Context()).EmitBytes(input(i, plainly)); err != nil {
			t.Fatal(err)
		}
	}
	held := []*bus.Kept{<-kept, <-kept}
	i := -1
	var stalls []bus.Stall
	for i < 0 { // an earlier report may be of an emission that had space, but no processor time
		stalls = <-reports
		i = slices.IndexFunc(stalls, func(s bus.Stall) bool {
			return strings.Contains(s.Holder, "the GPU has no room") && s.Deliveries == len(held)
		})
	}
	what := fmt.Sprintf("2 of request %v on edge make->read", r.ID())
	if s := stalls[i]; s.Request != r.ID() || s.Edge != "make->read" || s.Waited < time.Millisecond || !strings.Contains(s.Holder, what) {
		t.Errorf("report: %v", s)
	}
	mustFinish(t, held[0])
	mustFinish(t, held[1])
	mustFinish(t, <-kept)
	r.Abort(nil)
}

// TestSpaceWaitEndsWithCallerContext: an input that waits for space on a GPU waits until its
// context ends, with each value of WhenFull. It is not sent then, and the request continues.
func TestSpaceWaitEndsWithCallerContext(t *testing.T) {
	for name, when := range map[string]bus.WhenFull{"spill": bus.SpillToHost, "wait": bus.WaitForSpace, "fail": bus.FailWhenFull} {
		t.Run(name, func(t *testing.T) {
			f := fillPool(t, when, time.Hour)
			ctx, cancel := context.WithCancel(t.Context())
			sent := make(chan error)
			go func() { sent <- f.emit(ctx) }()
			testbus.Await(t, func() bool { return len(f.bus.Stalls(1)) > 0 })
			cancel()
			if err := <-sent; !errors.Is(err, bus.ErrCanceled) {
				t.Errorf("the wait ended with %v, want errCanceled", err)
			}
			mustFinish(t, f.held[0])
			if err := f.emit(t.Context()); err != nil {
				t.Error("the next:", err)
			}
			mustFinish(t, <-f.kept)
			mustFinish(t, f.held[1])
			if s := f.bus.Stats().Tensors; s.Pool.Messages != 3 || s.Spilt != 0 {
				t.Errorf("%+v, want three messages by the pool", s)
			}
		})
	}
}

// TestSpaceWaitTimesOut: a wait for space ends after FullTimeout, and when the request ends.
func TestSpaceWaitTimesOut(t *testing.T) {
	f := fillPool(t, bus.FailWhenFull, time.Millisecond)
	if err := f.emit(t.Context()); !errors.Is(err, lane.ErrPoolFull) {
		t.Errorf("%v, want ErrPoolFull", err)
	}
	mustFinish(t, f.held[0])
	mustFinish(t, f.held[1])

	f = fillPool(t, bus.FailWhenFull, time.Hour)
	sent := make(chan error)
	go func() { sent <- f.emit(t.Context()) }()
	testbus.Await(t, func() bool { return len(f.bus.Stalls(1)) > 0 })
	f.request.Abort(nil)
	if err := <-sent; !errors.Is(err, bus.ErrAborted) {
		t.Errorf("the request is over: %v, want ErrAborted", err)
	}
	mustFinish(t, f.held[0])
	mustFinish(t, f.held[1])
}

// fullPool is a bus whose pool is full of two held messages.
type fullPool struct {
	bus     *bus.Bus
	request *bus.Request
	emit    func(ctx context.Context) error
	kept    <-chan *bus.Kept
	held    []*bus.Kept
}

func fillPool(t *testing.T, when bus.WhenFull, timeout time.Duration) *fullPool {
	t.Helper()
	m := mustMachine(t)
	gpu := m.join().GPU
	gpu.WhenFull, gpu.FullTimeout = when, timeout
	spec, kept := keeping("read")
	spec.State = bus.StateRequest
	b := testbus.Open(t, bus.Pipeline{
		Stages: []bus.StageSpec{spec},
		Edges:  []bus.Edge{{To: "read", Tensors: bus.TensorsPool, Window: 8, WindowBytes: 1 << 20}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 32 << 20}, GPU: gpu})
	r := testbus.StreamOf(t, b)
	p, err := m.dev.Alloc(tensorBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Abort(nil)
		_ = r.Wait(context.Background())
		if err := errors.Join(m.stream.Synchronize(context.Background()), m.dev.Free(p)); err != nil {
			t.Error(err)
		}
	})
	x := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{tensorBytes}, Ptr: p}
	f := &fullPool{bus: b, request: r, kept: kept}
	f.emit = func(ctx context.Context) error {
		return r.Input(ctx).EmitTensors(map[string]any{"x": x}, bus.TensorOptions{})
	}
	for range 2 {
		if err := f.emit(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.held = append(f.held, <-kept)
	}
	return f
}

// wantTensor checks the tensor of a kept message.
func (m *machine) wantTensor(t *testing.T, k *bus.Kept, number uint64, onDevice bool) {
	t.Helper()
	msg, err := k.Delivery().Tensors(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if msg.OnDevice() != onDevice {
		t.Errorf("tensor %d is on a GPU: %t", number, msg.OnDevice())
	}
	if err := m.checkTensor(t.Context(), msg, filling(number)); err != nil {
		t.Errorf("tensor %d: %v", number, err)
	}
}

func (m *machine) joinAt(socket string) node.JoinOptions {
	opts := m.join()
	opts.Socket = socket
	return opts
}
