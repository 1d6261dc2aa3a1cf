package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// The pipeline of tensors in the memory of a GPU:
//
//	                                 ┌─ pool: w (forward, no GPU) ── r (read, two) ─┐
//	caller ── m (make tensors, two) ─┤                                              ├─ caller
//	                                 └─ lent: l (read, two) ────────────────────────┘
//
// Some copies are slow, so that processes die during them. A request fails when the first
// of its processes dies, or when a tensor of a dead process was never completed.
const (
	maxGPUInputs = 40
	gpuArena     = 1 << 20 // holds few tensors, so that chunks are soon reused

	// One copy in slowCopyIn takes up to slowCopy.
	slowCopyIn = 4
	slowCopy   = 4 * time.Millisecond

	levelTensor = levelV + 1
)

// driverEnv names the driver of the GPU to a process.
const driverEnv = "OMNIBUS_CHAOS_DRIVER"

// gpuDrivers open the GPU of a process, by name.
var gpuDrivers = map[string]func() (cudaipc.Driver, error){
	"emul": func() (cudaipc.Driver, error) {
		return emul.New(emul.Options{GranularityBytes: 1 << 16, Delay: func(s emul.Step) time.Duration {
			if s.Kind == cudaipc.OpCopy && rand.IntN(slowCopyIn) == 0 {
				return rand.N(slowCopy)
			}
			return 0
		}})
	},
}

// TestChaosGPU kills processes that make, forward and read tensors in the memory of
// a GPU. A reader of a tensor that differs from the one that was made gets an error, no
// request waits for ever, and every surviving process gets all of its memory back.
func TestChaosGPU(t *testing.T) {
	t.Setenv(driverEnv, *gpuDriver)
	if gpuDrivers[*gpuDriver] == nil {
		t.Fatalf("this binary has no driver %q", *gpuDriver)
	}
	testDirect(t, "gpu", *wantGPU)
}

func gpuScenario() scenario {
	sc := scenario{hostRequests: 1, maxPause: directKillPause, mayFail: true, roundTrip: gpuTrip, join: node.JoinOptions{
		Store: shmstore.Options{ArenaBytes: 16 << 20},
	}}
	for name, replicas := range map[string]int{"m": stageReplicas, "w": 1, "r": stageReplicas, "l": stageReplicas} {
		r := role{name: "stage " + name, stage: name, env: []string{roleEnv + "=gpu stage"}}
		for range replicas {
			sc.roles = append(sc.roles, r)
		}
		sc.pipeline.Stages = append(sc.pipeline.Stages, bus.StageSpec{
			Name: name, Remote: &bus.Remote{}, Replicas: replicas, MaxInflight: stageReplicas * stageInflight / replicas, State: bus.StateRequest,
		})
	}
	sc.roles = append(sc.roles, role{name: "submitter", env: []string{roleEnv + "=submit"}})
	for _, e := range []bus.Edge{
		{To: "m"},
		{From: "m", To: "w", Tensors: bus.TensorsPool},
		{From: "w", To: "r"},
		{From: "m", To: "l", Tensors: bus.TensorsIPC},
		{From: "r"},
		{From: "l"},
	} {
		e.Window, e.WindowBytes = window, windowBytes
		sc.pipeline.Edges = append(sc.pipeline.Edges, e)
	}
	sc.options = busOptions()
	return sc.named("gpu")
}

// gpuTrip sends one request through this pipeline and checks all results.
func gpuTrip(ctx context.Context, s submitter, tag uint32, i int) error {
	inputs := 1 + 7*i%maxGPUInputs
	r, err := s.Stream(ctx)
	if err != nil {
		return fmt.Errorf("start request %#x: %w", tag, err)
	}
	sent := make(chan error, 1)
	go func() { sent <- sendInputs(ctx, r, tag, inputs) }()
	c := collector{tag: tag, req: r}
	err = c.receive(ctx, uint64(inputs))
	r.Close()
	if sendErr := <-sent; err == nil && sendErr != nil {
		err = fmt.Errorf("send inputs: %w", sendErr)
	}
	if err != nil {
		return fmt.Errorf("request %d (%#x, %d inputs), %v: %w", r.ID(), tag, inputs, r.Outcome(), err)
	}
	return nil
}

// gpu is a stage's process's access to a GPU.
type gpu struct {
	driver cudaipc.Driver
	dev    cudaipc.Device
	stream cudaipc.Stream
}

// serveGPUStage is the process of a stage of this pipeline. It returns an error if
// anything is left on its GPU at the end.
func serveGPUStage() (err error) {
	name := os.Getenv(node.EnvStage)
	opts := currentScenario().join
	g := &gpu{}
	if name != "w" {
		if err := g.open(); err != nil {
			return err
		}
		opts.GPU = &bus.GPUOptions{
			Lane:     lane.Options{Driver: g.driver, Pool: pool.Options{ArenaBytes: gpuArena, MaxBytes: 2 * gpuArena}},
			WhenFull: bus.WaitForSpace,
		}
	}
	n, err := node.Join(context.Background(), name, opts)
	if err != nil {
		return err
	}
	err = n.Serve(context.Background(), g.stage(name))
	if err != nil {
		return err
	}
	if err = n.Close(context.Background()); err != nil || name == "w" {
		return err
	}
	if open := n.TensorStats().Open; open != 0 {
		return fmt.Errorf("%d messages are not settled", open)
	}
	return g.close()
}

func (g *gpu) open() (err error) {
	if g.driver, err = gpuDrivers[os.Getenv(driverEnv)](); err != nil {
		return err
	}
	if g.dev, err = g.driver.Open(cudaipc.UUID{}); err != nil {
		return err
	}
	g.stream, err = g.dev.NewStream()
	return err
}

func (g *gpu) close() error {
	err := errors.Join(g.stream.Close(), g.dev.Close())
	if e, ok := g.driver.(*emul.Driver); ok && e.Usage() != (cudaipc.Usage{}) {
		err = errors.Join(err, fmt.Errorf("left on the GPU: %+v", e.Usage()))
	}
	return errors.Join(err, g.driver.Close())
}

func (g *gpu) stage(name string) bus.StageSpec {
	spec := bus.StageSpec{Name: name, State: bus.StateRequest}
	switch name {
	case "m":
		spec.Handle = g.makeTensor
	case "w":
		spec.Handle = func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }
	case "r":
		spec.Handle = func(t *bus.Task, d *bus.Delivery) error { return g.readTensor(t, d, levelX) }
	case "l":
		spec.Handle = func(t *bus.Task, d *bus.Delivery) error { return g.readTensor(t, d, levelV) }
	}
	return spec
}

// makeTensor sends a tensor for each input, before the GPU has completed it.
func (g *gpu) makeTensor(t *bus.Task, d *bus.Delivery) error {
	tag, err := checkDelivery(d, levelInput)
	if err != nil {
		return err
	}
	data := payload(tag, levelTensor, d.Seq)
	p, err := g.dev.Alloc(int64(len(data)))
	if err != nil {
		return err
	}
	if err := g.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: p, Src: cudaipc.HostPtr(data), Bytes: int64(len(data))}); err != nil {
		return err
	}
	x := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{len(data)}, Ptr: p}
	return t.EmitTensors(map[string]any{"x": x}, bus.TensorOptions{Stream: g.stream, Release: func() {
		runtime.KeepAlive(data) // the stream has read it
		_ = g.dev.Free(p)
	}})
}

// readTensor checks a tensor, and emits a payload if the tensor is right.
func (g *gpu) readTensor(t *bus.Task, d *bus.Delivery, level int) error {
	m, err := d.Tensors(t.Context())
	if err != nil {
		return err
	}
	if err := m.Await(g.stream); err != nil {
		return err
	}
	x, ok := m.Value().(map[string]any)["x"].(*lane.Tensor)
	if !ok {
		return fmt.Errorf("%w: a tensor came through host memory", errBroken)
	}
	data := make([]byte, x.Bytes())
	if err := g.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(data), Src: x.Ptr, Bytes: x.Bytes()}); err != nil {
		return err
	}
	if err := g.stream.Synchronize(context.Background()); err != nil {
		return err
	}
	if err := m.Err(); err != nil {
		return err
	}
	tag, err := verify(data, levelTensor, d.Seq)
	if err != nil {
		fmt.Printf("broken %q\n", fmt.Errorf("tensor %d: %w", d.Seq, err))
		return err
	}
	return t.EmitBytes(payload(tag, level, d.Seq))
}

// poisoned reports whether a request failed because a tensor of a killed process was
// never completed, or was freed with the process before a reader opened its memory.
func (c *run) poisoned(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.victims) > 0 && slices.ContainsFunc([]error{lane.ErrPoisoned, lane.ErrNotPublished, cudaipc.ErrStaleHandle},
		func(err error) bool { return strings.Contains(text, err.Error()) })
}
