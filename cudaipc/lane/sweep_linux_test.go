package lane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// failing makes one call or one operation of a GPU fail, or one answer of a directory.
type failing struct {
	calls, steps, answers          atomic.Int64
	failCall, failStep, failAnswer int64 // number of the one that fails
	on                             atomic.Bool
}

var errInjected = errors.New("injected")

func (f *failing) options() emul.Options {
	return emul.Options{
		GranularityBytes: 1 << 16, Apart: true,
		Refuse: func(call string) error {
			if f.on.Load() && f.calls.Add(1) == f.failCall {
				return fmt.Errorf("%s: %w", call, errInjected)
			}
			return nil
		},
		Fault: func(emul.Step) error {
			if f.on.Load() && f.steps.Add(1) == f.failStep {
				return errInjected
			}
			return nil
		},
	}
}

// failingDirectory returns an error for one call.
type failingDirectory struct {
	*directory
	f *failing
}

func (d failingDirectory) Publish(ctx context.Context, name lane.Name, fd int, sizeBytes int64) error {
	if d.f.asked() {
		return fmt.Errorf("%w: %w", lane.ErrFull, errInjected)
	}
	return d.directory.Publish(ctx, name, fd, sizeBytes)
}

func (d failingDirectory) Find(ctx context.Context, name lane.Name) (lane.Found, error) {
	if d.f.asked() {
		return lane.Found{}, fmt.Errorf("%w: %w", lane.ErrUnavailable, errInjected)
	}
	return d.directory.Find(ctx, name)
}

func (f *failing) asked() bool { return f.on.Load() && f.answers.Add(1) == f.failAnswer }

// TestEachCallFails makes each call and each operation of the sender's GPU, of the receiver's, and
// each answer of the directory fail in turn, while tensors are sent by all modes. A received tensor
// is right or poisoned, no call waits for ever, release functions are called once, and no object is
// left.
func TestEachCallFails(t *testing.T) {
	for name, fail := range map[string]func(n int64) *failing{
		"call":      func(n int64) *failing { return &failing{failCall: n} },
		"operation": func(n int64) *failing { return &failing{failStep: n} },
		"answer":    func(n int64) *failing { return &failing{failAnswer: n} },
	} {
		for _, receiver := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, receiver %t", name, receiver), func(t *testing.T) {
				for n := int64(1); ; n++ {
					f := fail(n)
					if !t.Run(fmt.Sprint(n), func(t *testing.T) { sweep(t, f, receiver) }) {
						return
					}
					if f.calls.Load() < f.failCall || f.steps.Load() < f.failStep || f.answers.Load() < f.failAnswer {
						if n < 4 {
							t.Errorf("%d have failed", n-1)
						}
						return
					}
				}
			})
		}
	}
}

// sweep sends by all modes while one call fails.
func sweep(t *testing.T, f *failing, receiver bool) {
	dir := newDirectory(t)
	whole, broken := (&failing{}).options(), f.options()
	if receiver {
		whole, broken = broken, whole
	}
	from := newBench(t, broken, lane.Options{Directory: failingDirectory{dir, f}})
	to := newBench(t, whole, lane.Options{Directory: failingDirectory{dir, f}})
	src, data := from.tensor(codec.DTypeUint8, 5000)
	dst := to.alloc(5000)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	f.on.Store(true)
	defer f.on.Store(false)
	for _, mode := range []lane.Mode{lane.Default, lane.IPC, lane.Pool, lane.Pool} {
		var released atomic.Int64
		back := make(chan struct{})
		h, _, err := from.send(src, mode, 0, func() {
			if released.Add(1) == 1 {
				close(back)
			}
		})
		if err != nil {
			if !errors.Is(err, errInjected) && !errors.Is(err, cudaipc.ErrSticky) {
				t.Errorf("send by %v: %v", mode, err)
			}
		} else {
			lease, err := from.store.Local().Take(h)
			if err != nil {
				t.Fatal(err)
			}
			if err := receive(ctx, to, lease.Bytes(), dst, data, lease.Release); err != nil && !isExpected(err) {
				t.Errorf("receive by %v: %v", mode, err)
			}
		}
		for _, dev := range from.from.Devices() {
			from.store.FreeUnusedOn(dev)
		}
		select {
		case <-back:
		case <-ctx.Done():
			t.Fatalf("by %v the sender's memory was never released", mode)
		}
		if n := released.Load(); n != 1 {
			t.Errorf("by %v the sender's memory was released %d times", mode, n)
		}
	}
}

// TestFailureWaitsForNoStream: a send that fails before it has submitted copies does not wait for
// the stream's earlier operations.
func TestFailureWaitsForNoStream(t *testing.T) {
	f := &failing{failAnswer: 2} // the Publish of the arena
	b := newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{Directory: failingDirectory{newDirectory(t), f}})
	src, _ := b.tensor(codec.DTypeUint8, 5000)
	resume := holdStream(t, b)
	f.on.Store(true)
	if _, _, err := b.send(src, lane.Pool, 0, nil); !errors.Is(err, lane.ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
	resume()
}

// TestSettledWithoutADevice: a message is settled when its streams are done, also if the device of
// its words cannot be opened.
func TestSettledWithoutADevice(t *testing.T) {
	var refuse atomic.Bool
	no := errors.New("not today")
	driver, err := emul.New(emul.Options{Missing: map[string]string{"Words": "for a test"}, Refuse: func(call string) error {
		if call == "Open" && refuse.Load() {
			return no
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	from := newBench(t, emul.Options{}, lane.Options{})
	src, _ := from.tensor(codec.DTypeUint8, 4096)
	payload := newMapped(t, 1<<16).put(from, src)
	l, err := lane.Open(t.Context(), lane.Options{Driver: driver, Device: emul.UUID(7)}) // which does not exist
	if err != nil {
		t.Fatal(err)
	}
	dev, err := l.Device(emul.UUID(0))
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	m, err := l.Open(t.Context(), payload)
	if err == nil {
		_, err = m.Unwrap(s, emul.UUID(0), dev.Alloc)
	}
	if err != nil {
		t.Fatal(err)
	}
	refuse.Store(true)
	if err := m.Close(); !errors.Is(err, no) {
		t.Errorf("Close: %v", err)
	}
	settled(t, m)
	if err := errors.Join(s.Close(), l.Close(t.Context()), driver.Close()); err != nil {
		t.Error(err)
	}
}

// isExpected reports whether an error is the injected one or one of its consequences.
func isExpected(err error) bool {
	return errors.Is(err, errInjected) || errors.Is(err, cudaipc.ErrSticky) || errors.Is(err, lane.ErrPoisoned)
}

var errWrong = errors.New("other bytes, without an error")

// receive copies a message and compares it. It returns after the release of the lease.
func receive(ctx context.Context, to *bench, payload []byte, dst cudaipc.Ptr, want []byte, release func()) error {
	m, err := to.lane.Open(ctx, payload)
	if err != nil {
		release()
		return err
	}
	given := make(chan struct{})
	m.OnSettled(func() { release(); close(given) })
	_, err = m.Unwrap(to.s, cudaipc.UUID{}, func(int64) (cudaipc.Ptr, error) { return dst, nil })
	err = errors.Join(err, m.Close())
	if err == nil {
		err = errors.Join(to.s.Synchronize(ctx), m.Err())
	}
	select {
	case <-given:
	case <-ctx.Done():
		return errors.New("the lease was never released")
	}
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	if err := to.s.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(got), Src: dst, Bytes: int64(len(got))}); err != nil {
		return err
	}
	if err := to.s.Synchronize(ctx); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errWrong
	}
	return nil
}
