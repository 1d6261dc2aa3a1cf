package lane_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestLenderDeviceFails lends a buffer from a device that fails before the buffer is complete: a
// Wait in another process returns ErrPoisoned.
func TestLenderDeviceFails(t *testing.T) {
	dir := newDirectory(t)
	gpu := emul.Options{GranularityBytes: 1 << 16, Apart: true}
	from, to := newBench(t, gpu, lane.Options{Directory: dir}), newBench(t, gpu, lane.Options{Directory: dir})
	src, _ := from.tensor(codec.DTypeUint8, 4096)
	holdStream(t, from)
	m := handOver(from, to, src, lane.IPC)
	from.breakDevice(src)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := m.Wait(ctx); !errors.Is(err, lane.ErrPoisoned) {
		t.Errorf("wait: %v, want ErrPoisoned", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	settled(t, m)
}

// TestLentBufferWasFreed opens a message whose sender has died, or has freed the lent buffer.
func TestLentBufferWasFreed(t *testing.T) {
	for _, known := range []bool{true, false} { // the receiver has opened a pool of the sender
		dir := newDirectory(t)
		gpu := emul.Options{Apart: true}
		from, to := newBench(t, gpu, lane.Options{Directory: dir}), newBench(t, gpu, lane.Options{Directory: dir})
		src, _ := from.tensor(codec.DTypeUint8, 4096)
		if known {
			m := handOver(from, to, src, lane.IPC)
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			settled(t, m)
		}
		p, err := from.dev.Alloc(4096)
		if err != nil {
			t.Fatal(err)
		}
		src.Ptr = p
		lease, err := from.store.Local().Take(from.mustSend(src, lane.IPC))
		if err != nil {
			t.Fatal(err)
		}
		why := cudaipc.ErrStaleHandle
		if !known { // names of a dead process are not found
			why = lane.ErrNotPublished
			dir.withdrawAll()
		}
		if err := from.dev.Free(p); err != nil {
			t.Fatal(err)
		}
		if _, err := to.lane.Open(t.Context(), lease.Bytes()); !errors.Is(err, lane.ErrPoisoned) || !errors.Is(err, why) {
			t.Errorf("%v, want ErrPoisoned, and why", err)
		}
		lease.Release()
	}
}

// breakDevice ends the bench's device by an access to unallocated memory.
func (b *bench) breakDevice(near *lane.Tensor) {
	b.t.Helper()
	s, err := b.dev.NewStream()
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = s.Close() })
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: near.Ptr + 1<<40, Src: near.Ptr, Bytes: 1}); err != nil {
		b.t.Fatal(err)
	}
}

// handOver sends a value from one lane by a mode, and opens it in the other.
func handOver(from, to *bench, v any, mode lane.Mode) *lane.Message {
	from.t.Helper()
	lease, err := from.store.Local().Take(from.mustSend(v, mode))
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

// TestCopyOutlivesItsContext: Fill returns after the last copy into the payload, also after an
// error: the payload gets another owner then.
func TestCopyOutlivesItsContext(t *testing.T) {
	var slow atomic.Bool
	b := newBench(t, emul.Options{Delay: func(s emul.Step) time.Duration {
		if s.Kind == cudaipc.OpCopy && slow.Load() {
			return 30 * time.Millisecond
		}
		return 0
	}}, lane.Options{})
	src, data := b.tensor(codec.DTypeUint8, 4096)
	slow.Store(true)
	released := false
	o, err := b.from.Plan(t.Context(), src, lane.Default, 0, 0, func() { released = true })
	if err != nil {
		t.Fatal(err)
	}
	r, err := b.store.Reserve(o.Size(), codec.IDBundle, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Abort()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.Fill(ctx, r.Bytes(), b.s); !errors.Is(err, context.Canceled) {
		t.Errorf("fill: %v, want context.Canceled", err)
	}
	if !bytes.Contains(r.Bytes(), data) {
		t.Error("Fill has returned, and a copy into the payload is still to come")
	}
	if !released {
		t.Error("Fill has failed and kept the sender's memory")
	}
}

// TestMessagesEndWithoutFreeWords: with more ending messages than words, no message is released
// while a stream reads it.
func TestMessagesEndWithoutFreeWords(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	src, _ := b.tensor(codec.DTypeUint8, 4096)
	lease, err := b.store.Local().Take(b.mustSend(src, lane.Pool))
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	b.sync(b.s)
	resume := holdStream(t, b)
	var early atomic.Int32
	var open []*lane.Message
	for range 4096 + 10 {
		m, err := b.lane.Open(t.Context(), lease.Bytes())
		if err == nil {
			err = m.Await(b.s)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.OnSettled(func() { early.Add(1) })
		open = append(open, m)
	}
	for _, m := range open {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := early.Load(); n != 0 {
		t.Errorf("%d messages were released while a stream read them", n)
	}
	resume()
	for _, m := range open {
		settled(t, m)
	}
}
