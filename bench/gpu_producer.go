package bench

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A GPUProducer puts tensors on a GPU into tensor queues, for consumers that are
// not written in Go: scripts/gpu_torch.py.
type GPUProducer struct {
	Driver string // DriverEmul or DriverCUDA
	// Folder has the queues' sockets, each with the name of its transport, and the socket
	// of a bus. A request to the only stage of the bus is an order, whose results are
	// the tensors, in the pool.
	Folder string
	// LargestBytes is the size of the largest tensor. The pool has space for exactly
	// PoolTensors of them.
	LargestBytes int64
}

// PoolTensors is how many of the largest tensors of a [GPUProducer] its pool holds.
const PoolTensors = 4

// The lines of JSON that a producer reads and writes.
type (
	producerOrder struct {
		Transport string `json:"transport"`
		DType     string `json:"dtype"`
		Bytes     int64  `json:"bytes"` // of a tensor
		Count     int    `json:"count"`
		Number    int64  `json:"number"` // of the first tensor: see fillTensor
		Fresh     bool   `json:"fresh"`  // each is a new tensor; otherwise the first is sent repeatedly
	}
	producerGreeting struct {
		GPU     string            `json:"gpu"`
		Driver  string            `json:"driver"`
		Missing map[string]string `json:"missing"` // unavailable transports, with the reason
	}
	producerAnswer struct {
		Put   int    `json:"put"`
		Error string `json:"error,omitempty"` // why it ends
	}
)

const (
	// producerColumns is the length of a tensor's rows.
	producerColumns = 1024
	// elementPeriod is the period of the elements, which count from the tensor's number
	// on, row after row. A bfloat16 represents all smaller numbers exactly.
	elementPeriod = 251
)

const (
	minLargestBytes = 16 * kib // the least size for a pool
	maxLargestBytes = 1 << 36

	producerStage   = "stage"
	producerStore   = 16 * mib // the largest item without a segment of its own
	producerTimeout = 10 * time.Second
)

// producer is a GPUProducer at work.
type producer struct {
	GPUProducer
	driver cudaipc.Driver
	dev    cudaipc.Device
	stream cudaipc.Stream
	memory *shmstore.Segment // a tensor on its way to the GPU
	host   cudaipc.HostMemory
	queues map[string]*tensorqueue.Queue
	bus    *bus.Bus
	server *host.Server

	mu   sync.Mutex
	kept map[producerOrder]numbered // tensors that are sent again and again
}

// numbered is a tensor with its number, and the weighted sum of its elements: see fillTensor.
type numbered struct {
	tensor *gpulane.Tensor
	number int64
	sum    int64
}

func (x numbered) inputs() map[string]any {
	return map[string]any{"x": x.tensor, "number": x.number, "sum": x.sum}
}

// Run handles the orders of in, one a line, until in ends. It answers an order when all of
// its tensors are consumed and their memory is free again. The caller must not end in before
// the last answer: that cancels the current order.
func (o GPUProducer) Run(ctx context.Context, in io.Reader, out io.Writer) (err error) {
	p := &producer{GPUProducer: o, queues: make(map[string]*tensorqueue.Queue), kept: make(map[producerOrder]numbered)}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), producerTimeout)
		defer cancel()
		err = errors.Join(err, p.close(ending))
	}()
	greeting, err := p.open(ctx)
	if err != nil {
		return err
	}
	say := json.NewEncoder(out)
	if err := say.Encode(greeting); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	orders := make(chan []byte)
	go func() {
		defer cancel()
		defer close(orders)
		for lines := bufio.NewScanner(in); lines.Scan(); {
			select {
			case orders <- append([]byte(nil), lines.Bytes()...):
			case <-ctx.Done():
				return
			}
		}
	}()
	for line := range orders {
		answer, err := p.handleOrder(ctx, line)
		if err = errors.Join(err, say.Encode(answer)); err != nil {
			return err
		}
	}
	return nil
}

func (p *producer) handleOrder(ctx context.Context, line []byte) (producerAnswer, error) {
	order, err := parseOrder(line)
	if err == nil {
		err = p.put(ctx, order)
	}
	if err != nil {
		return producerAnswer{Error: err.Error()}, err
	}
	return producerAnswer{Put: order.Count}, nil
}

func parseOrder(line []byte) (order producerOrder, err error) {
	if err := json.Unmarshal(line, &order); err != nil {
		return order, fmt.Errorf("%w: an order %q: %w", ErrOptions, line, err)
	}
	return order, nil
}

func (p *producer) open(ctx context.Context) (greeting producerGreeting, err error) {
	if p.LargestBytes < minLargestBytes || p.LargestBytes > maxLargestBytes {
		return greeting, fmt.Errorf("%w: tensors of %d bytes: use %d to %d", ErrOptions, p.LargestBytes, minLargestBytes, int64(maxLargestBytes))
	}
	if p.driver, err = openDriver(p.Driver); err != nil {
		return greeting, err
	}
	if p.dev, err = p.driver.Open(cudaipc.UUID{}); err != nil {
		return greeting, err
	}
	if p.stream, err = p.dev.NewStream(); err != nil {
		return greeting, err
	}
	if p.memory, err = shmstore.NewSegment("bench-producer", p.LargestBytes); err != nil {
		return greeting, err
	}
	if p.host, err = p.dev.RegisterHost(p.memory.Bytes(), false); err != nil {
		return greeting, err
	}
	greeting = producerGreeting{GPU: p.dev.Caps().Name, Driver: p.dev.Caps().Driver, Missing: make(map[string]string)}
	l, err := gpulane.Open(ctx, p.lane())
	if err != nil {
		return greeting, err
	}
	for _, transport := range []bus.TensorTransport{bus.TensorsDefault, bus.TensorsIPC, bus.TensorsPool} {
		mode := map[bus.TensorTransport]gpulane.Mode{bus.TensorsIPC: gpulane.IPC, bus.TensorsPool: gpulane.Pool}[transport]
		if why := l.Why(mode); why != nil {
			greeting.Missing[transport.String()] = why.Error()
		}
		if p.queues[transport.String()], err = p.queue(ctx, transport); err != nil {
			break
		}
	}
	if err == nil {
		err = p.listen(ctx)
	}
	return greeting, errors.Join(err, l.Close(ctx))
}

// listen opens the bus.
func (p *producer) listen(ctx context.Context) (err error) {
	line := bus.Pipeline{
		Stages: []bus.StageSpec{{Name: producerStage, Handle: p.make}},
		Edges:  []bus.Edge{{From: producerStage, Tensors: bus.TensorsPool}},
	}
	p.bus, err = bus.Open(ctx, line, bus.Options{
		Store: shmstore.Options{ArenaBytes: 16 * mib, Memory: shmstore.Shared}, MaxRequests: 1, GPU: p.gpu(),
	})
	if err != nil {
		return err
	}
	p.server, err = host.Listen(p.bus, filepath.Join(p.Folder, producerStage), host.ListenOptions{})
	return err
}

// make is the stage.
func (p *producer) make(t *bus.Task, d *bus.Delivery) error {
	var line []byte
	if err := d.Decode(&line); err != nil {
		return err
	}
	order, err := parseOrder(line)
	if err != nil {
		return err
	}
	for i := range order.Count {
		x, release, err := p.tensor(t.Context(), order, int64(i))
		if err != nil {
			return err
		}
		if err := t.EmitTensors(x.inputs(), bus.TensorOptions{Release: release}); err != nil {
			return err
		}
	}
	return nil
}

// gpu describes the lanes that send.
func (p *producer) gpu() *bus.GPUOptions {
	return &bus.GPUOptions{Lane: p.lane(), WhenFull: bus.FailWhenFull, FullTimeout: producerTimeout}
}

// lane describes all lanes.
func (p *producer) lane() gpulane.Options {
	arena := p.LargestBytes*PoolTensors + p.LargestBytes/2
	return gpulane.Options{Driver: p.driver, Pool: pool.Options{ArenaBytes: arena, MaxBytes: arena}}
}

func (p *producer) queue(ctx context.Context, transport bus.TensorTransport) (*tensorqueue.Queue, error) {
	opts := tensorqueue.Options{
		Name: transport.String(), Socket: filepath.Join(p.Folder, transport.String()), Transport: transport,
		MaxItemBytes: p.LargestBytes + bundleBytes, GPU: p.gpu(),
	}
	if transport == bus.TensorsDefault {
		const items = 16 // of a store, the largest that lie in it
		opts.StoreBytes = items * (min(p.LargestBytes, producerStore) + bundleBytes)
	}
	return tensorqueue.Open(ctx, opts)
}

// put handles an order. When it returns without an error, all of its items are consumed and
// the memory of its tensors is released.
func (p *producer) put(ctx context.Context, order producerOrder) error {
	q := p.queues[order.Transport]
	if q == nil {
		return fmt.Errorf("%w: no transport %q", ErrOptions, order.Transport)
	}
	var lent sync.WaitGroup
	for i := range order.Count {
		x, release, err := p.tensor(ctx, order, int64(i))
		if err != nil {
			return err
		}
		lent.Add(1)
		err = q.Put(ctx, strconv.FormatInt(x.number, 10), "", x.inputs(), tensorqueue.PutOptions{Release: func() {
			release()
			lent.Done()
		}})
		if err != nil {
			return err
		}
	}
	if err := q.Drain(ctx); err != nil {
		return err
	}
	free := make(chan struct{})
	go func() {
		lent.Wait()
		close(free)
	}()
	select {
	case <-free:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("tensors were not released: %w", context.Cause(ctx))
	}
}

// tensor makes a tensor, or finds the one that was made. The caller calls release when
// the memory is no longer needed.
func (p *producer) tensor(ctx context.Context, order producerOrder, i int64) (x numbered, release func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !order.Fresh {
		order.Transport, order.Count = "", 0
		x, ok := p.kept[order]
		if !ok {
			if x, err = p.fresh(ctx, order, order.Number); err == nil {
				p.kept[order] = x
			}
		}
		return x, func() {}, err
	}
	x, err = p.fresh(ctx, order, order.Number+i)
	if err != nil {
		return x, nil, err
	}
	return x, func() { _ = p.dev.Free(x.tensor.Ptr) }, nil // fails only if the GPU has failed
}

// fresh makes a tensor on the GPU.
func (p *producer) fresh(ctx context.Context, order producerOrder, number int64) (numbered, error) {
	dtype, ok := map[string]codec.DType{"float32": codec.DTypeFloat32, "bfloat16": codec.DTypeBFloat16}[order.DType]
	if !ok {
		return numbered{}, fmt.Errorf("%w: no elements %q: use float32 or bfloat16", ErrOptions, order.DType)
	}
	row := int64(dtype.Size() * producerColumns)
	if order.Bytes < row || order.Bytes > p.LargestBytes || order.Bytes%row != 0 {
		return numbered{}, fmt.Errorf("%w: tensors of %d bytes: use a multiple of %d up to %d", ErrOptions, order.Bytes, row, p.LargestBytes)
	}
	sum := fillTensor(p.memory.Bytes()[:order.Bytes], dtype, number)
	at, err := p.dev.Alloc(order.Bytes)
	if err != nil {
		return numbered{}, err
	}
	err = p.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: at, Src: p.host.Ptr(0), Bytes: order.Bytes})
	if err == nil {
		err = p.stream.Synchronize(ctx) // the next tensor is made in the same memory
	}
	if err != nil {
		return numbered{}, errors.Join(err, p.dev.Free(at))
	}
	x := &gpulane.Tensor{DType: dtype, Shape: []int{int(order.Bytes / row), producerColumns}, Ptr: at}
	return numbered{x, number, sum}, nil
}

// fillTensor writes the elements of a tensor, which are small whole numbers, and returns
// their sum, weighted by row and column. The sum is exact in a float64.
func fillTensor(data []byte, dtype codec.DType, number int64) (sum int64) {
	const weights = 7
	v := number % elementPeriod
	for row := int64(1); len(data) > 0; row++ {
		var ofRow int64
		for column := range int64(producerColumns) {
			bits := math.Float32bits(float32(v))
			if dtype == codec.DTypeBFloat16 {
				binary.LittleEndian.PutUint16(data, uint16(bits>>16))
			} else {
				binary.LittleEndian.PutUint32(data, bits)
			}
			data = data[dtype.Size():]
			ofRow += v * (column%weights + 1)
			if v++; v == elementPeriod {
				v = 0
			}
		}
		sum += row * ofRow
	}
	return sum
}

// close closes the queues and the bus, which fails if a consumer still holds an item, and
// then the memory and the GPU.
func (p *producer) close(ctx context.Context) error {
	var errs []error
	for transport, q := range p.queues {
		if q == nil {
			continue
		}
		if err := q.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", transport, err))
		}
	}
	if p.server != nil {
		errs = append(errs, p.server.Close(ctx))
	}
	if p.bus != nil {
		errs = append(errs, p.bus.Close(ctx))
	}
	if errors.Join(errs...) != nil {
		return errors.Join(errs...) // the memory is freed with the process
	}
	for _, x := range p.kept {
		errs = append(errs, p.dev.Free(x.tensor.Ptr))
	}
	if p.host != nil {
		errs = append(errs, p.host.Close())
	}
	if p.memory != nil {
		p.memory.Close()
	}
	if p.stream != nil {
		errs = append(errs, p.stream.Close())
	}
	if p.dev != nil {
		errs = append(errs, p.dev.Close())
	}
	if p.driver != nil {
		errs = append(errs, p.driver.Close())
	}
	return errors.Join(errs...)
}
