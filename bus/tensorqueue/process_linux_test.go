package tensorqueue_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

const (
	tensorBytes = 100 << 10
	itemCount   = 20
)

// gpu is an emulated GPU with a stream.
type gpu struct {
	driver *emul.Driver
	dev    cudaipc.Device
	stream cudaipc.Stream
}

func newGPU() (*gpu, error) {
	driver, err := emul.New(emul.Options{GranularityBytes: 1 << 16})
	if err != nil {
		return nil, err
	}
	g := &gpu{driver: driver}
	if g.dev, err = driver.Open(cudaipc.UUID{}); err == nil {
		g.stream, err = g.dev.NewStream()
	}
	return g, err
}

func (g *gpu) close() error {
	return errors.Join(g.stream.Close(), g.dev.Close(), g.driver.Close())
}

func (g *gpu) options() *bus.GPUOptions {
	return &bus.GPUOptions{
		Lane:     lane.Options{Driver: g.driver, Pool: pool.Options{ArenaBytes: 512 << 10, MaxBytes: 512 << 10}},
		WhenFull: bus.WaitForSpace,
	}
}

// put puts an item with a tensor on the GPU that is still being written, and a tensor in host memory.
// Their bytes are a function of the id.
func (g *gpu) put(ctx context.Context, q *tensorqueue.Queue, rid int) error {
	p, err := g.dev.Alloc(tensorBytes)
	if err != nil {
		return err
	}
	data := pattern(rid)
	if err := g.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: p, Src: cudaipc.HostPtr(data), Bytes: tensorBytes}); err != nil {
		return err
	}
	inputs := map[string]any{
		"gpu":  []any{&lane.Tensor{DType: codec.DTypeUint8, Shape: []int{tensorBytes}, Ptr: p}},
		"host": codec.Tensor{DType: codec.DTypeUint8, Shape: []int{64}, Data: pattern(rid)[:64]},
	}
	err = q.Put(ctx, strconv.Itoa(rid), "name", inputs, tensorqueue.PutOptions{Stream: g.stream, Release: func() { _ = g.dev.Free(p) }})
	err = errors.Join(err, g.stream.Synchronize(ctx))
	runtime.KeepAlive(data) // the stream has read it
	return err
}

func pattern(rid int) []byte {
	b := make([]byte, tensorBytes)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + rid*31)
	}
	return b
}

// get takes an item and checks its tensors.
func (g *gpu) get(ctx context.Context, q *tensorqueue.Queue, onDevice bool) (*tensorqueue.Item, error) {
	it, err := q.Get(ctx)
	if err != nil {
		return nil, err
	}
	rid, err := strconv.Atoi(it.RID)
	if err != nil || it.ShmName != "name" || it.Message().OnDevice() != onDevice {
		return nil, fmt.Errorf("got %q, %q, on a device: %v", it.RID, it.ShmName, it.Message().OnDevice())
	}
	var all []cudaipc.Ptr
	inputs, err := it.Unwrap(g.stream, cudaipc.UUID{}, func(n int64) (cudaipc.Ptr, error) {
		p, err := g.dev.Alloc(n)
		all = append(all, p)
		return p, err
	})
	if err != nil {
		return nil, err
	}
	for _, x := range []any{inputs["gpu"].([]any)[0], inputs["host"]} {
		if err := g.check(ctx, x.(*lane.Tensor), pattern(rid)); err != nil {
			return nil, fmt.Errorf("item %d: %w", rid, err)
		}
	}
	for _, p := range all {
		if err := g.dev.Free(p); err != nil {
			return nil, err
		}
	}
	return it, it.Message().Err()
}

func (g *gpu) check(ctx context.Context, x *lane.Tensor, want []byte) error {
	got := make([]byte, x.Bytes())
	if err := g.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(got), Src: x.Ptr, Bytes: x.Bytes()}); err != nil {
		return err
	}
	if err := g.stream.Synchronize(ctx); err != nil {
		return err
	}
	if !bytes.Equal(got, want[:len(got)]) {
		return errors.New("other bytes than were put")
	}
	return nil
}

func init() {
	roles["producer"] = func() {
		inChild(func(ctx context.Context, g *gpu, q *tensorqueue.Queue, _ bool) error {
			for i := range itemCount {
				if err := g.put(ctx, q, i); err != nil {
					return err
				}
			}
			return q.Drain(ctx)
		})
	}
	roles["consumer"] = func() {
		inChild(func(ctx context.Context, g *gpu, q *tensorqueue.Queue, onDevice bool) error {
			say("joined")
			for {
				it, err := g.get(ctx, q, onDevice)
				if errors.Is(err, tensorqueue.ErrClosed) {
					return nil
				}
				if err != nil {
					return err
				}
				say(it.RID)
				if err := it.Close(); err != nil {
					return err
				}
			}
		})
	}
	roles["hoarder"] = func() { // never closes what it gets
		inChild(func(ctx context.Context, g *gpu, q *tensorqueue.Queue, onDevice bool) error {
			for {
				it, err := g.get(ctx, q, onDevice)
				if err != nil {
					return err
				}
				say(it.RID)
			}
		})
	}
}

// say prints a line for the test.
func say(what string) { fmt.Fprintln(os.Stdout, what) }

// inChild joins the queue, runs do, and closes the queue.
func inChild(do func(ctx context.Context, g *gpu, q *tensorqueue.Queue, onDevice bool) error) {
	ctx := context.Background()
	g, err := newGPU()
	if err == nil {
		var q *tensorqueue.Queue
		if q, err = tensorqueue.Join(ctx, tensorqueue.Options{Socket: os.Getenv(socketEnv), GPU: g.options()}); err == nil {
			err = do(ctx, g, q, len(os.Args) > 1)
			if cerr := q.Close(ctx); err == nil {
				err = cerr
			}
		}
	}
	if err == nil {
		err = g.close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// child is a process that has joined the queue.
type child struct {
	t   *testing.T
	cmd *exec.Cmd
	out *bufio.Reader
}

func startChild(t *testing.T, role string, opts tensorqueue.Options) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	if opts.Transport != bus.TensorsDefault {
		c.cmd.Args = append(c.cmd.Args, "on-device")
	}
	c.cmd.Env = append(os.Environ(), roleEnv+"="+role, socketEnv+"="+opts.Socket)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err == nil {
		err = c.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	t.Cleanup(func() { _ = c.cmd.Process.Kill() })
	return c
}

// line returns the child's next line, mostly the id of an item that it got.
func (c *child) line() string {
	c.t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// wait waits until the child exits, and checks its status.
func (c *child) wait() {
	c.t.Helper()
	if _, err := io.Copy(io.Discard, c.out); err != nil {
		c.t.Error(err)
	}
	if err := c.cmd.Wait(); err != nil {
		c.t.Errorf("child: %v", err)
	}
}

func (c *child) kill() {
	c.t.Helper()
	if err := c.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	_ = c.cmd.Wait()
}

// openGPU opens a queue for tensors on a GPU.
func openGPU(t *testing.T, opts tensorqueue.Options) (*gpu, *tensorqueue.Queue, tensorqueue.Options) {
	t.Helper()
	g, err := newGPU()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.close(); err != nil {
			t.Error(err)
		}
	})
	opts.GPU = g.options()
	q, opts := open(t, opts)
	return g, q, opts
}

func eachTransport(t *testing.T, f func(t *testing.T, opts tensorqueue.Options)) {
	for _, transport := range []bus.TensorTransport{bus.TensorsDefault, bus.TensorsIPC, bus.TensorsPool} {
		t.Run(transport.String(), func(t *testing.T) { f(t, tensorqueue.Options{Transport: transport, MaxSize: 3}) })
	}
}

func TestTensorsFromAnotherProcess(t *testing.T) {
	eachTransport(t, func(t *testing.T, opts tensorqueue.Options) {
		g, q, opts := openGPU(t, opts)
		c := startChild(t, "producer", opts)
		for i := range itemCount {
			it, err := g.get(t.Context(), q, opts.Transport != bus.TensorsDefault)
			if err != nil {
				t.Fatal(err)
			}
			if it.RID != strconv.Itoa(i) {
				t.Errorf("got %q, want %d", it.RID, i)
			}
			closeItem(t, it)
		}
		c.wait() // it has seen all of them closed
	})
}

// TestTensorsToOtherProcesses: each item reaches one of two consumers, and each consumer gets its items
// in order.
func TestTensorsToOtherProcesses(t *testing.T) {
	eachTransport(t, func(t *testing.T, opts tensorqueue.Options) {
		g, q, opts := openGPU(t, opts)
		consumers := []*child{startChild(t, "consumer", opts), startChild(t, "consumer", opts)}
		for _, c := range consumers { // else the queue may be closed before the second joins
			if got := c.line(); got != "joined" {
				t.Errorf("a child says %q", got)
			}
		}
		for i := range itemCount {
			if err := g.put(t.Context(), q, i); err != nil {
				t.Fatal(err)
			}
		}
		if err := q.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		closeQueue(t, q) // which ends the consumers
		got := make(map[int]int)
		for _, c := range consumers {
			last := -1
			for line, err := c.out.ReadString('\n'); err == nil; line, err = c.out.ReadString('\n') {
				i, err := strconv.Atoi(strings.TrimSpace(line))
				if err != nil || i <= last {
					t.Errorf("%q came behind %d: %v", line, last, err)
				}
				last = i
				got[i]++
			}
			c.wait()
		}
		for i := range itemCount {
			if got[i] != 1 {
				t.Errorf("item %d was got %d times", i, got[i])
			}
		}
	})
}

// TestConsumerDies: the items of a dead consumer go to another one.
func TestConsumerDies(t *testing.T) {
	eachTransport(t, func(t *testing.T, opts tensorqueue.Options) {
		g, q, opts := openGPU(t, opts)
		c := startChild(t, "hoarder", opts)
		for i := range 3 {
			if err := g.put(t.Context(), q, i); err != nil {
				t.Fatal(err)
			}
			if rid := c.line(); rid != strconv.Itoa(i) {
				t.Errorf("the child got %q, want %d", rid, i)
			}
		}
		if n := size(t, q); n != 0 {
			t.Errorf("%d items, want none", n)
		}
		c.kill()
		got := make(map[string]bool)
		for range 3 {
			it, err := g.get(t.Context(), q, opts.Transport != bus.TensorsDefault)
			if err != nil {
				t.Fatal(err)
			}
			if it.Attempt < 1 || got[it.RID] { // more than 1: the child was waiting for a fourth
				t.Errorf("item %q, attempt %d, came before: %v", it.RID, it.Attempt, got[it.RID])
			}
			got[it.RID] = true
			closeItem(t, it)
		}
	})
}

// TestProducerDies: items that were not taken are withdrawn, and waiting getters go on.
func TestProducerDies(t *testing.T) {
	eachTransport(t, func(t *testing.T, opts tensorqueue.Options) {
		g, q, opts := openGPU(t, opts)
		c := startChild(t, "producer", opts)
		it, err := g.get(t.Context(), q, opts.Transport != bus.TensorsDefault)
		if err != nil {
			t.Fatal(err)
		}
		c.kill() // with up to three more in the queue, and one that waits
		for tensorqueue.Joined(q) > 0 {
			runtime.Gosched() // its last messages may still be in handling
		}
		awaitEmpty(t, q)
		closeItem(t, it)
		if err := g.put(t.Context(), q, 7); err != nil {
			t.Fatal(err)
		}
		it, err = g.get(t.Context(), q, opts.Transport != bus.TensorsDefault)
		if err != nil {
			t.Fatal(err)
		}
		if it.RID != "7" {
			t.Errorf("got %q", it.RID)
		}
		closeItem(t, it)
	})
}

// TestOwnerDies: all calls end, and taken items stay valid.
func TestOwnerDies(t *testing.T) {
	socket := t.TempDir() + "/q.sock"
	c := startChild(t, "owner", tensorqueue.Options{Socket: socket})
	c.line() // it has opened the queue
	q := join(t, tensorqueue.Options{Socket: socket})
	held := heldOf(t, q, q)
	waiting := make(chan error)
	go func() {
		_, err := q.Get(t.Context())
		waiting <- err
	}()
	c.kill()
	if err := <-waiting; !errors.Is(err, tensorqueue.ErrClosed) {
		t.Errorf("a get that waited: %v", err)
	}
	if err := q.Put(t.Context(), "x", "", nil, tensorqueue.PutOptions{}); !errors.Is(err, tensorqueue.ErrClosed) {
		t.Errorf("put: %v", err)
	}
	if x := held.Inputs()["x"].(codec.Tensor).Data; !bytes.Equal(x, bytes.Repeat([]byte{7}, len(x))) {
		t.Error("the taken item has lost its data")
	}
	closeItem(t, held)
}

func init() {
	roles["owner"] = func() {
		if _, err := tensorqueue.Open(context.Background(), tensorqueue.Options{Socket: os.Getenv(socketEnv)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		say("open")
		select {} // until the test kills it
	}
}
