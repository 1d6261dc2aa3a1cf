package lane_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// bench is a lane with a store, a device and a stream.
type bench struct {
	t      testing.TB
	lane   *lane.Lane
	from   *lane.Sender
	store  *shmstore.Store
	driver *emul.Driver
	dev    cudaipc.Device
	s      cudaipc.Stream
	freed  []cudaipc.Ptr
}

func newBench(t testing.TB, gpu emul.Options, opts lane.Options) *bench {
	t.Helper()
	driver, err := emul.New(gpu)
	if err != nil {
		t.Fatal(err)
	}
	store, err := shmstore.Create(shmstore.Options{ArenaBytes: 1 << 20, MaxLargeBytes: 16 << 20, Memory: shmstore.Shared})
	if err != nil {
		t.Fatal(err)
	}
	if opts.Driver == nil {
		opts.Driver = driver
	}
	if opts.Pool.ArenaBytes == 0 {
		opts.Pool.ArenaBytes = 4 << 20
	}
	l, err := lane.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, driver: driver, lane: l, store: store, from: l.Sender(store.Arena(), func() {})}
	if b.dev, err = l.Device(cudaipc.UUID{}); err != nil {
		t.Fatal(err)
	}
	if b.s, err = b.dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, v := range store.Check() {
			t.Errorf("store: %v", v)
		}
		if err := b.from.Check(); err != nil {
			t.Error(err)
		}
		for _, p := range b.freed {
			_ = b.dev.Free(p) // fails on a failed device
		}
		_ = b.s.Close()
		for _, dev := range b.from.Devices() {
			if left := store.FreeUnusedOn(dev); left != 0 {
				t.Errorf("%d pieces are held", left)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := b.from.Close(ctx); err != nil && !errors.Is(err, cudaipc.ErrSticky) {
			t.Errorf("close sender: %v", err)
		}
		if err := store.Close(); err != nil {
			t.Errorf("close store: %v", err)
		}
		if err := l.Close(ctx); err != nil && !errors.Is(err, cudaipc.ErrSticky) {
			t.Errorf("close lane: %v", err)
		}
		if err := driver.Close(); err != nil {
			t.Errorf("close driver: %v", err)
		}
	})
	return b
}

// tensor makes a tensor on the device with random elements, and returns the elements too.
func (b *bench) tensor(dtype codec.DType, shape ...int) (*lane.Tensor, []byte) {
	b.t.Helper()
	n := dtype.Size()
	for _, dim := range shape {
		n *= dim
	}
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	t := &lane.Tensor{DType: dtype, Shape: shape, Ptr: b.alloc(int64(n))}
	b.submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: t.Ptr, Src: cudaipc.HostPtr(data), Bytes: int64(n)})
	b.sync(b.s)
	return t, data
}

func (b *bench) alloc(n int64) cudaipc.Ptr {
	b.t.Helper()
	p, err := b.dev.Alloc(max(n, 1))
	if err != nil {
		b.t.Fatal(err)
	}
	b.freed = append(b.freed, p)
	return p
}

func (b *bench) submit(ops ...cudaipc.Op) {
	b.t.Helper()
	if err := b.s.Submit(ops...); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) sync(s cudaipc.Stream) {
	b.t.Helper()
	if err := s.Synchronize(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// read copies a tensor to the host.
func (b *bench) read(t *lane.Tensor) []byte {
	b.t.Helper()
	data := make([]byte, t.Bytes())
	if len(data) > 0 {
		b.submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(data), Src: t.Ptr, Bytes: t.Bytes()})
		b.sync(b.s)
	}
	return data
}

// send makes an object of a value, for one delivery.
func (b *bench) send(v any, mode lane.Mode, minBytes int64, release func()) (shmstore.Handle, *lane.Outgoing, error) {
	b.t.Helper()
	o, err := b.from.Plan(b.t.Context(), v, mode, minBytes, 0, release)
	if err != nil {
		return shmstore.Handle{}, nil, err
	}
	var r shmstore.Reservation
	var piece uint32
	if dev, n := o.On(); dev != nil {
		if r, piece, err = b.store.ReserveOn(dev, n, o.Size(), codec.IDBundle, 0); err == nil {
			o.Reserved(piece)
		}
	} else {
		r, err = b.store.Reserve(o.Size(), codec.IDBundle, 0)
	}
	if err != nil {
		o.Cancel()
		return shmstore.Handle{}, o, err
	}
	if err := o.Fill(b.t.Context(), r.Bytes(), b.s); err != nil {
		r.Abort()
		return shmstore.Handle{}, o, err
	}
	h, err := r.Commit(o.Size(), 1)
	if err != nil {
		b.t.Fatal(err)
	}
	return h, o, nil
}

func (b *bench) mustSend(v any, mode lane.Mode) shmstore.Handle {
	b.t.Helper()
	h, _, err := b.send(v, mode, 0, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	return h
}

// receive opens a sent message. Its lease is released with the message.
func (b *bench) receive(h shmstore.Handle) *lane.Message {
	b.t.Helper()
	lease, err := b.store.Local().Take(h)
	if err != nil {
		b.t.Fatal(err)
	}
	m, err := b.lane.Open(b.t.Context(), lease.Bytes())
	if err != nil {
		lease.Release()
		b.t.Fatal(err)
	}
	m.OnSettled(lease.Release)
	return m
}

// unwrap copies a message's tensors and closes it.
func (b *bench) unwrap(m *lane.Message) any {
	b.t.Helper()
	v, err := m.Unwrap(b.s, cudaipc.UUID{}, func(n int64) (cudaipc.Ptr, error) { return b.alloc(n), nil })
	if err != nil {
		b.t.Fatal(err)
	}
	if err := m.Close(); err != nil {
		b.t.Fatal(err)
	}
	b.sync(b.s)
	if err := m.Err(); err != nil {
		b.t.Fatal(err)
	}
	return v
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func settled(t *testing.T, m *lane.Message) {
	t.Helper()
	done := make(chan struct{})
	m.OnSettled(func() { close(done) })
	select {
	case <-done:
	case <-t.Context().Done():
		t.Fatal("the message was never settled")
	}
}

// holdStream makes the bench's stream wait until the returned function is called.
func holdStream(t *testing.T, b *bench) (resume func()) {
	t.Helper()
	mem, err := shmstore.NewSegment("gate", 4096)
	if err != nil {
		t.Fatal(err)
	}
	host, err := b.dev.RegisterHost(mem.Bytes(), false)
	if err != nil {
		t.Fatal(err)
	}
	b.submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: host.Word(0), Value: 1})
	word := host.Word(0).Host
	t.Cleanup(func() {
		word.Store(1)
		_ = b.s.Synchronize(context.Background())
		_ = host.Close()
		mem.Close()
	})
	return func() { word.Store(1) }
}
