package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// gpuReclaim has a process hold all chunks of a bus's pool, kills it, and waits until a
// waiting stage has got as many chunks:
//
//	caller ── make (host) ─┬─ hold-0, hold-1 … (a process each, which is killed) ── caller
//	                       └─ take (host)
//
// While one process dies, the others start.
type gpuReclaim struct {
	*gpuEnd
	from     cudaipc.Ptr
	bus      *bus.Bus
	spec     peerSpec
	opts     Options
	kills    int
	holders  []*peer
	starting chan struct{} // receives before the first tensor for take is sent
	taken    chan time.Time
}

// The pool has space for exactly as many chunks as are held.
const (
	reclaimChunks = 8
	reclaimBytes  = 240 * kib
	reclaimPool   = 2 * mib
	reclaimStages = 4
)

const (
	makeStage = "make"
	takeStage = "take"
)

func holdStage(i int) string { return fmt.Sprintf("hold-%d", i) }

func openGPUReclaim(ctx context.Context, opts Options, kills int) (trial, error) {
	r := &gpuReclaim{
		gpuEnd: &gpuEnd{spec: gpuSpec{Driver: opts.Driver}}, opts: opts, kills: kills,
		holders: make([]*peer, reclaimStages), starting: make(chan struct{}), taken: make(chan time.Time, 1),
	}
	if err := r.openBus(ctx); err != nil {
		return nil, errors.Join(err, r.close(context.WithoutCancel(ctx)))
	}
	return r, nil
}

func (r *gpuReclaim) openBus(ctx context.Context) (err error) {
	if err := r.openDevice(); err != nil {
		return err
	}
	if r.from, err = r.alloc(reclaimBytes); err != nil {
		return err
	}
	temp, err := os.MkdirTemp("", "omnibus-bench")
	if err != nil {
		return err
	}
	r.onClose(func(context.Context) error { return os.RemoveAll(temp) })
	r.bus, err = bus.Open(ctx, r.pipeline(), bus.Options{
		Store: shmstore.Options{ArenaBytes: 16 * mib, Memory: shmstore.Shared},
		GPU: &bus.GPUOptions{
			Lane:     gpulane.Options{Driver: r.driver, Pool: pool.Options{ArenaBytes: reclaimPool, MaxBytes: reclaimPool}},
			WhenFull: bus.WaitForSpace,
		},
	})
	if err != nil {
		return err
	}
	r.onClose(r.bus.Close)
	r.spec = peerSpec{Carrier: byGPUHolder, Socket: filepath.Join(temp, "socket")}
	server, err := host.Listen(r.bus, r.spec.Socket, host.ListenOptions{})
	if err != nil {
		return err
	}
	r.onClose(server.Close)
	r.onClose(func(context.Context) error { return r.closeHolders() })
	for i := range r.holders {
		if err := r.startHolder(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

func (r *gpuReclaim) pipeline() bus.Pipeline {
	line := bus.Pipeline{
		Stages: []bus.StageSpec{{Name: makeStage, Handle: r.make}, {Name: takeStage, Handle: func(*bus.Task, *bus.Delivery) error { return nil }}},
		Edges:  []bus.Edge{{To: makeStage}, {From: makeStage, To: takeStage, Tensors: bus.TensorsPool, Window: reclaimChunks}},
	}
	for i := range r.holders {
		name := holdStage(i)
		line.Stages = append(line.Stages, bus.StageSpec{Name: name, Remote: &bus.Remote{}, MaxInflight: reclaimChunks})
		line.Edges = append(line.Edges, bus.Edge{From: makeStage, To: name, Tensors: bus.TensorsPool, Window: reclaimChunks}, bus.Edge{From: name})
	}
	return line
}

// make sends as many tensors as fit into the pool to the stage that its input names.
func (r *gpuReclaim) make(t *bus.Task, d *bus.Delivery) error {
	to := string(d.Bytes())
	if to == takeStage {
		select {
		case r.starting <- struct{}{}:
		case <-t.Context().Done():
			return t.Context().Err()
		}
	}
	for range reclaimChunks {
		x := &gpulane.Tensor{DType: codec.DTypeUint8, Shape: []int{reclaimBytes}, Ptr: r.from}
		if err := t.EmitTensors(map[string]any{"x": x}, bus.TensorOptions{}, bus.To(to)); err != nil {
			return err
		}
	}
	if to == takeStage {
		r.taken <- time.Now()
	}
	return nil
}

func (r *gpuReclaim) startHolder(ctx context.Context, i int) (err error) {
	spec := r.spec
	spec.GPU = &gpuSpec{Driver: r.opts.Driver, Stage: holdStage(i)}
	r.holders[i], err = startPeer(ctx, r.opts, spec, nil)
	return err
}

func (r *gpuReclaim) closeHolders() error {
	var errs []error
	for _, p := range r.holders {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	return errors.Join(errs...)
}

func (r *gpuReclaim) round(ctx context.Context, _ bool) ([]sample, error) {
	var teardowns, frees []float64
	for start := time.Now(); len(frees) < r.kills && time.Since(start) < reclaimTime; {
		i := len(frees) % len(r.holders)
		teardown, free, err := r.kill(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("kill %d: %w", len(frees)+1, err)
		}
		teardowns = append(teardowns, float64(teardown)/float64(time.Millisecond))
		frees = append(frees, float64(free)/float64(time.Millisecond))
		if err := r.startHolder(ctx, i); err != nil {
			return nil, err
		}
	}
	samples := []sample{{ours: float64(len(frees))}}
	for _, took := range [][]float64{teardowns, frees} {
		samples = append(samples, sample{ours: quantile(took, 0.5)}, sample{ours: quantile(took, 0.99)}, sample{ours: slices.Max(took)})
	}
	return samples, nil
}

// kill has a holder take all chunks, and kills it while a stage waits for them.
func (r *gpuReclaim) kill(ctx context.Context, i int) (teardown, free time.Duration, err error) {
	holder := r.holders[i]
	pidfd, err := unix.PidfdOpen(holder.cmd.Process.Pid, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("open the process: %w", err)
	}
	defer unix.Close(pidfd)
	held, err := r.request(ctx, holdStage(i))
	if err != nil {
		return 0, 0, err
	}
	defer held.Close()
	holder.onExit(held.Abort)
	d, err := held.Recv(ctx)
	if err != nil {
		return 0, 0, holder.explain(err)
	}
	if err := d.Finish(nil); err != nil {
		return 0, 0, err
	}
	taking, err := r.request(ctx, takeStage)
	if err != nil {
		return 0, 0, err
	}
	defer taking.Close()
	select {
	case <-r.starting:
	case <-taking.Done():
		return 0, 0, fmt.Errorf("no tensors were sent: %w", taking.Err())
	}
	died := make(chan time.Time, 1)
	go func() { died <- awaitDeath(pidfd) }()
	select {
	case <-r.taken:
		return 0, 0, errors.New("the pool has space for more chunks than are held: nothing is measured")
	default:
	}
	start := time.Now()
	if err := holder.cmd.Process.Kill(); err != nil {
		return 0, 0, err
	}
	over := <-died
	select {
	case at := <-r.taken:
		// The bus may see the death before this process does, and free the chunks.
		return over.Sub(start), max(at.Sub(over), 0), nil
	case <-taking.Done():
		return 0, 0, fmt.Errorf("not all tensors were sent: %w", taking.Err())
	case <-time.After(fullTimeout):
		return 0, 0, fmt.Errorf("chunks are not free %v after the death of their reader", fullTimeout)
	}
}

// request sends a request that has tensors made for a stage.
func (r *gpuReclaim) request(ctx context.Context, stage string) (*bus.Request, error) {
	req, err := r.bus.Stream(ctx)
	if err != nil {
		return nil, err
	}
	in := req.Input(ctx)
	if err := in.EmitBytes([]byte(stage), bus.Last()); err != nil {
		req.Close()
		return nil, err
	}
	return req, nil
}

// awaitDeath returns the time at which a pidfd becomes readable.
func awaitDeath(pidfd int) time.Time {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if n, err := unix.Poll(fds, -1); n == 1 || err != nil && !errors.Is(err, unix.EINTR) {
			return time.Now()
		}
	}
}

// serveGPUHolder is a process of gpuReclaim. It keeps its tensors, and answers when it holds
// all chunks of the pool.
func serveGPUHolder(ctx context.Context, spec peerSpec) error {
	g := &gpuEnd{spec: *spec.GPU}
	if err := g.openDevice(); err != nil {
		return err
	}
	node, err := node.Join(ctx, "bench", node.JoinOptions{Socket: spec.Socket, GPU: &bus.GPUOptions{Lane: gpulane.Options{Driver: g.driver}}})
	if err != nil {
		return err
	}
	stream, err := g.dev.NewStream()
	if err != nil {
		return err
	}
	held := 0
	return node.Serve(ctx, bus.StageSpec{Name: spec.GPU.Stage, Handle: func(t *bus.Task, d *bus.Delivery) error {
		m, err := d.Tensors(t.Context())
		if err != nil {
			return err
		}
		if err := errors.Join(m.Await(stream), stream.Synchronize(t.Context()), m.Err()); err != nil {
			return err
		}
		d.Keep()
		if held++; held < reclaimChunks {
			return nil
		}
		return t.EmitBytes([]byte("held"))
	}})
}
