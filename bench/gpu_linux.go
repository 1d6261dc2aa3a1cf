package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A gpuEnd is one of two processes with a GPU: a channel of handles, and a lane of tensors.
type gpuEnd struct {
	*gpuChannel
	spec   gpuSpec
	driver cudaipc.Driver
	dev    cudaipc.Device
	lane   *gpulane.Lane
	sender *gpulane.Sender
	stream cudaipc.Stream
	closes []func(context.Context) error // called in the reverse order
}

func (g *gpuEnd) onClose(f func(context.Context) error) { g.closes = append(g.closes, f) }

// openDevice opens the GPU.
func (g *gpuEnd) openDevice() (err error) {
	if g.driver, err = openDriver(g.spec.Driver); err != nil {
		return err
	}
	g.onClose(func(context.Context) error { return g.driver.Close() })
	if g.dev, err = g.driver.Open(cudaipc.UUID{}); err != nil {
		return err
	}
	g.onClose(func(context.Context) error { return g.dev.Close() })
	return nil
}

// open opens the GPU, and a lane that finds the other process's memory in the directory.
func (g *gpuEnd) open(ctx context.Context, dir gpulane.Directory) (err error) {
	if err := g.openDevice(); err != nil {
		return err
	}
	g.lane, err = gpulane.Open(ctx, gpulane.Options{
		Driver: g.driver, Directory: dir, Pool: pool.Options{ArenaBytes: g.spec.PoolBytes, MaxBytes: g.spec.PoolBytes},
	})
	if err != nil {
		return err
	}
	g.onClose(g.lane.Close)
	if err := g.lane.Why(gpulane.Pool); err != nil {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	if g.stream, err = g.dev.NewStream(); err != nil {
		return err
	}
	g.onClose(func(context.Context) error { return g.stream.Close() })
	return nil
}

// alloc allocates memory on the GPU, which is freed when the end is closed.
func (g *gpuEnd) alloc(sizeBytes int64) (cudaipc.Ptr, error) {
	p, err := g.dev.Alloc(sizeBytes)
	if err == nil {
		g.onClose(func(context.Context) error { return g.dev.Free(p) })
	}
	return p, err
}

// pinned makes host memory that is registered with the GPU.
func (g *gpuEnd) pinned(sizeBytes int64) ([]byte, cudaipc.HostMemory, error) {
	mem, err := unix.Mmap(-1, 0, int(sizeBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return nil, nil, fmt.Errorf("map %d bytes: %w", sizeBytes, err)
	}
	g.onClose(func(context.Context) error { return unix.Munmap(mem) })
	host, err := g.dev.RegisterHost(mem, false)
	if err == nil {
		g.onClose(func(context.Context) error { return host.Close() })
	}
	return mem, host, err
}

func (g *gpuEnd) close(ctx context.Context) error {
	var errs []error
	for i := len(g.closes) - 1; i >= 0; i-- {
		errs = append(errs, g.closes[i](ctx))
	}
	return errors.Join(errs...)
}

// fullTimeout bounds the wait for space, which the other process is about to release.
const fullTimeout = 20 * time.Second

// publish commits a value and sends it to the other process. With an empty charge it sends nothing.
func (g *gpuEnd) publish(ctx context.Context, v any, mode gpulane.Mode, charge shmstore.ReaderSet) error {
	h, err := g.commit(ctx, v, mode, charge)
	if err != nil || charge == 0 {
		return err
	}
	frame, err := h.AppendBinary(g.frame[:0])
	if err != nil {
		return err
	}
	return g.sendFrame(frameHandle, frame)
}

// commit puts a value into the store, and its tensors into the memory of the mode.
func (g *gpuEnd) commit(ctx context.Context, v any, mode gpulane.Mode, charge shmstore.ReaderSet) (h messages.Handle, err error) {
	o, err := g.sender.Plan(ctx, v, mode, 0, 0, nil)
	if err != nil {
		return h, err
	}
	if o.Mode() != mode {
		o.Cancel()
		return h, fmt.Errorf("tensors travel by %v and not by %v", o.Mode(), mode)
	}
	r, err := g.reserve(o, charge)
	if err != nil {
		o.Cancel()
		return h, err
	}
	if err := o.Fill(ctx, r.Bytes(), g.stream); err != nil {
		r.Abort()
		return h, err
	}
	return r.Commit(o.Size(), 0)
}

func (g *gpuEnd) reserve(o *gpulane.Outgoing, charge shmstore.ReaderSet) (r shmstore.Reservation, err error) {
	var start time.Time
	for {
		dev, n := o.On()
		if dev == nil {
			r, err = g.store.Reserve(o.Size(), codec.IDBundle, charge)
		} else {
			var piece uint32
			if r, piece, err = g.store.ReserveOn(dev, n, o.Size(), codec.IDBundle, charge); err == nil {
				o.Reserved(piece)
			}
		}
		if !errors.Is(err, shmstore.ErrFull) {
			return r, err
		}
		if start.IsZero() {
			start = time.Now()
		} else if time.Since(start) > fullTimeout {
			return r, err
		}
		runtime.Gosched() // the other process is about to release space
	}
}

// An answer is the other process's report on a tensor.
type answer struct {
	wrong   bool  // the tensor has wrong bytes
	started int64 // the time when the GPU began, in nanoseconds
}

const answerBytes = 16

func (g *gpuEnd) answer(a answer) error {
	var b [answerBytes]byte
	if a.wrong {
		b[0] = 1
	}
	binary.LittleEndian.PutUint64(b[8:], uint64(a.started))
	return g.sendFrame(framePayload, b[:])
}

// awaitAnswer waits for an answer.
func (g *gpuEnd) awaitAnswer() (a answer, err error) {
	frame, _, err := g.next()
	if err != nil {
		return a, err
	}
	if len(frame) != answerBytes {
		return a, fmt.Errorf("an answer of %d bytes", len(frame))
	}
	a = answer{frame[0] != 0, int64(binary.LittleEndian.Uint64(frame[8:]))}
	g.receiver.Advance()
	return a, nil
}

// monotonic reads a clock that all processes share, in nanoseconds.
func monotonic() int64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // never fails
	return ts.Nano()
}

// A gpuPair is this process's end, and the peer.
type gpuPair struct {
	*gpuEnd
	peer *peer
	from cudaipc.Ptr // a tensor on the GPU
}

// openGPUPair opens both ends. The processes find each other's memory in the
// directory of a bus that is used for nothing else.
func openGPUPair(ctx context.Context, opts Options, spec peerSpec) (p *gpuPair, err error) {
	p = &gpuPair{gpuEnd: &gpuEnd{spec: *spec.GPU}}
	defer func() {
		if err != nil {
			if p.peer != nil {
				err = p.peer.explain(err)
			}
			err = errors.Join(err, p.close(context.WithoutCancel(ctx)))
		}
	}()
	temp, err := os.MkdirTemp("", "omnibus-bench")
	if err != nil {
		return p, err
	}
	p.onClose(func(context.Context) error { return os.RemoveAll(temp) })
	spec.Socket = filepath.Join(temp, "socket")
	h, err := hostFor(ctx, spec, shmstore.Options{ArenaBytes: 16 * mib, Memory: shmstore.Shared})
	p.onClose(h.close)
	if err != nil {
		return p, err
	}
	if err := p.open(ctx, h.bus.Directory()); err != nil {
		return p, err
	}
	if err := p.startPeer(ctx, opts, spec); err != nil {
		return p, err
	}
	p.from, err = p.alloc(p.spec.TensorBytes)
	return p, err
}

func (p *gpuPair) startPeer(ctx context.Context, opts Options, spec peerSpec) error {
	c, files, err := makeGPUChannel(spec)
	defer func() { closeFiles(files) }()
	p.gpuChannel = c
	p.onClose(func(context.Context) error { return c.close() })
	if err != nil {
		return err
	}
	p.sender = p.lane.Sender(p.store.Arena(), func() {})
	p.onClose(p.closeSender)
	if p.peer, err = startPeer(ctx, opts, spec, files); err != nil {
		return err
	}
	p.onClose(func(context.Context) error { return errors.Join(p.peer.close(), p.forgetPeer()) })
	if err := p.attach(true); err != nil {
		return err
	}
	p.peer.onExit(p.fail)
	return nil
}

// forgetPeer drops the debts of a peer that has ended, if it was admitted.
func (p *gpuPair) forgetPeer() error {
	if p.reader == nil {
		return nil
	}
	return p.store.RemoveReader(p.id)
}

// closeSender closes the sender, after the peer has ended, and reports tensors that were not
// released.
func (p *gpuPair) closeSender(ctx context.Context) error {
	var errs []error
	for _, dev := range p.sender.Devices() {
		if left := p.store.FreeUnusedOn(dev); left > 0 {
			errs = append(errs, fmt.Errorf("%d tensors were not released", left))
		}
	}
	return errors.Join(append(errs, p.sender.Check(), p.sender.Close(ctx))...)
}

// tensor returns the pair's tensor, for use in a value.
func (p *gpuPair) tensor() *gpulane.Tensor {
	return &gpulane.Tensor{DType: codec.DTypeUint8, Shape: []int{int(p.spec.TensorBytes)}, Ptr: p.from}
}

// serveGPU is the peer of a gpuPair.
func serveGPU(ctx context.Context, spec peerSpec) error {
	node, err := node.Join(ctx, "bench", node.JoinOptions{Socket: spec.Socket})
	if err != nil {
		return err
	}
	g := &gpuEnd{spec: *spec.GPU}
	if g.gpuChannel, err = openGPUChannel(spec); err != nil {
		return err
	}
	if err := g.attach(false); err != nil { // before open: the other process waits for it
		return err
	}
	if err := g.open(ctx, node.Directory()); err != nil {
		return err
	}
	c, err := newGPUConsumer(g)
	if err != nil {
		return err
	}
	if spec.GPU.Waiting == "spinning" {
		if _, err := pin(1); err != nil { // until the process ends
			return err
		}
	}
	return c.serve(ctx)
}
