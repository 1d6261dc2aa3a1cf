package lane_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

// directory is a directory within a process; the test decides when its owner dies.
type directory struct {
	mu    sync.Mutex
	known map[lane.Name]published
	finds int
	done  chan struct{}
}

type published struct {
	fd        int
	sizeBytes int64
}

func newDirectory(t testing.TB) *directory {
	d := &directory{known: make(map[lane.Name]published), done: make(chan struct{})}
	t.Cleanup(func() {
		for _, p := range d.known {
			_ = unix.Close(p.fd)
		}
	})
	return d
}

func (d *directory) Publish(_ context.Context, name lane.Name, fd int, sizeBytes int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.known[name]; ok {
		return lane.ErrPublished
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	d.known[name] = published{dup, sizeBytes}
	return err
}

func (d *directory) Withdraw(name lane.Name) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p, ok := d.known[name]; ok {
		_ = unix.Close(p.fd)
		delete(d.known, name)
	}
}

func (d *directory) withdrawAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, p := range d.known {
		_ = unix.Close(p.fd)
		delete(d.known, name)
	}
}

func (d *directory) Find(_ context.Context, name lane.Name) (lane.Found, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finds++
	p, ok := d.known[name]
	if !ok {
		return lane.Found{}, lane.ErrNotPublished
	}
	dup, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
	return lane.Found{FD: dup, SizeBytes: p.sizeBytes, Owner: d}, err
}

// Done implements lane.Owner: the directory is the owner of all its entries.
func (d *directory) Done() <-chan struct{} { return d.done }

// pair returns two lanes with one directory. They act like two processes, except for handles, which
// no driver opens in their own process.
func pair(t *testing.T, opts lane.Options) (from, to *bench, dir *directory) {
	dir = newDirectory(t)
	opts.Directory = dir
	return newBench(t, emul.Options{GranularityBytes: 1 << 16}, opts), newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{Directory: dir}), dir
}

// handOverPool sends a value through the pool of one lane, and opens it in the other.
func handOverPool(from, to *bench, v any) *lane.Message {
	from.t.Helper()
	h := from.mustSend(v, lane.Pool)
	lease, err := from.store.Local().Take(h)
	if err != nil {
		from.t.Fatal(err)
	}
	m, err := to.lane.Open(from.t.Context(), lease.Bytes())
	if err != nil {
		from.t.Fatal(err)
	}
	m.OnSettled(lease.Release)
	return m
}

// TestArenasAreMappedOnce counts the second lane's calls of the directory.
func TestArenasAreMappedOnce(t *testing.T) {
	from, to, dir := pair(t, lane.Options{})
	src, data := from.tensor(codec.DTypeFloat32, 1000)
	for i := range 50 {
		m := handOverPool(from, to, src)
		if got := to.unwrap(m).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
			t.Fatalf("message %d has other bytes", i)
		}
		settled(t, m)
		if i == 0 {
			lane.Untidy(t, to.lane) // a tidy would ask, too
		}
		if dir.finds != 2 { // the words and one arena
			t.Fatalf("after %d messages %d descriptors were asked for", i+1, dir.finds)
		}
	}
}

// TestWithdrawnArenasAreUnmapped grows and shrinks the producer's pool: the consumer unmaps the
// withdrawn arenas.
func TestWithdrawnArenasAreUnmapped(t *testing.T) {
	from, to, dir := pair(t, lane.Options{Pool: pool.Options{ArenaBytes: 1 << 20, MaxBytes: 3 << 20}})
	src, data := from.tensor(codec.DTypeUint8, 400<<10)
	burst := func(n int) {
		var open []*lane.Message
		for range n {
			open = append(open, handOverPool(from, to, src))
		}
		for _, m := range open {
			if got := to.unwrap(m).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
				t.Error("other bytes")
			}
			settled(t, m)
		}
	}
	arenas := func() (n int) {
		dir.mu.Lock()
		defer dir.mu.Unlock()
		for name := range dir.known {
			if name.Number > 0 {
				n++
			}
		}
		return n
	}
	burst(1)
	one := arenas()
	burst(5)
	grown := arenas()
	if grown != one+2 {
		t.Fatalf("%d arenas are published for 5 messages, %d for none", grown, one)
	}
	for range 200 {
		burst(1)
		from.store.FreeUnused() // settled objects stay until their space is needed
	}
	if left := arenas(); left != one {
		t.Errorf("%d arenas are published after a quiet time, %d before", left, one)
	}
	burst(5) // new arenas, with new numbers
}

// TestDeadProducer: the death of a producer poisons incomplete tensors: streams that wait continue,
// and the consumer gets the error.
func TestDeadProducer(t *testing.T) {
	from, to, dir := pair(t, lane.Options{})
	src, data := from.tensor(codec.DTypeUint8, 4096)
	complete := handOverPool(from, to, src)
	from.sync(from.s)
	holdStream(t, from)
	broken := handOverPool(from, to, src)
	if err := broken.Await(to.s); err != nil {
		t.Fatal(err)
	}
	close(dir.done) // the producer is dead, with a copy in its queue
	to.sync(to.s)
	if err := broken.Err(); !errors.Is(err, lane.ErrPoisoned) {
		t.Errorf("an incomplete message: %v, want ErrPoisoned", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := broken.Wait(ctx); !errors.Is(err, lane.ErrPoisoned) {
		t.Errorf("wait: %v, want ErrPoisoned", err)
	}
	if got := to.unwrap(complete).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
		t.Error("a complete message has other bytes")
	}
	if err := broken.Close(); err != nil {
		t.Fatal(err)
	}
	settled(t, broken)
	settled(t, complete)
}

// TestFailedProducer: a failure of the producer's device poisons incomplete tensors, while its
// process lives.
func TestFailedProducer(t *testing.T) {
	from, to, _ := pair(t, lane.Options{})
	src, _ := from.tensor(codec.DTypeUint8, 4096)
	holdStream(t, from)
	m := handOverPool(from, to, src)
	// An access to unallocated memory ends the device.
	other, err := from.dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	_ = other.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: src.Ptr + 1<<40, Src: src.Ptr, Bytes: 1})
	if err := m.Wait(t.Context()); !errors.Is(err, lane.ErrPoisoned) {
		t.Errorf("wait: %v, want ErrPoisoned", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	settled(t, m)
}

// TestForgedHandles: a place that exceeds the allocation of its handle is refused.
func TestForgedHandles(t *testing.T) {
	dir := newDirectory(t)
	apart := emul.Options{Apart: true}
	from, to := newBench(t, apart, lane.Options{Directory: dir}), newBench(t, apart, lane.Options{Directory: dir})
	src, data := from.tensor(codec.DTypeUint8, 4096)
	h := from.mustSend(src, lane.IPC)
	from.sync(from.s)
	lease, err := from.store.Local().Take(h)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	forged := bytes.Clone(lease.Bytes())
	binary.LittleEndian.PutUint64(forged[32+48:], 1<<40) // the offset of the first place, see codec/bundle
	if _, err := to.lane.Open(t.Context(), forged); !errors.Is(err, lane.ErrForged) {
		t.Errorf("%v, want ErrForged", err)
	}
	m, err := to.lane.Open(t.Context(), lease.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if got := to.unwrap(m).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
		t.Error("other bytes")
	}
	settled(t, m)
}
