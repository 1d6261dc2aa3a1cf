package lane_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// stoppedDirectory is a directory whose host can be stopped: meanwhile Publish blocks until its
// context ends.
type stoppedDirectory struct {
	*directory
	stopped atomic.Bool
	asked   chan struct{}
}

func (d *stoppedDirectory) Publish(ctx context.Context, name lane.Name, fd int, sizeBytes int64) error {
	if d.stopped.Load() {
		d.asked <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return d.directory.Publish(ctx, name, fd, sizeBytes)
}

// names returns the number of published names.
func (d *directory) names() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.known)
}

var (
	errFirst  = errors.New("the first call was canceled")
	errSecond = errors.New("the second call was canceled")
)

// cancelTwo starts two calls that publish and cancels them: the first asks the directory; the
// second waits for the first, and is canceled before it.
func cancelTwo(t *testing.T, d *stoppedDirectory, first, second func(ctx context.Context) error) {
	t.Helper()
	d.stopped.Store(true)
	defer d.stopped.Store(false)
	begin := func(f func(ctx context.Context) error) (cancel context.CancelCauseFunc, ended chan error) {
		ctx, cancel := context.WithCancelCause(t.Context())
		ended = make(chan error, 1)
		go func() { ended <- f(ctx) }()
		return cancel, ended
	}
	cancelFirst, firstEnded := begin(first)
	<-d.asked
	cancelSecond, secondEnded := begin(second)
	cancelSecond(errSecond)
	if err := <-secondEnded; !errors.Is(err, errSecond) {
		t.Errorf("the waiting call: %v, want the context's error", err)
	}
	cancelFirst(errFirst)
	if err := <-firstEnded; !errors.Is(err, errFirst) {
		t.Errorf("the publishing call: %v, want the context's error", err)
	}
}

// TestPlanEndsWithItsContext: Plan ends with its context while it publishes a mode's words, and the
// next call tries again.
func TestPlanEndsWithItsContext(t *testing.T) {
	for _, mode := range []lane.Mode{lane.IPC, lane.Pool} {
		t.Run(mode.String(), func(t *testing.T) {
			d := &stoppedDirectory{directory: newDirectory(t), asked: make(chan struct{})}
			b := newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{Directory: d})
			src, _ := b.tensor(codec.DTypeUint8, 5000)
			plan := func(ctx context.Context) error {
				_, err := b.from.Plan(ctx, src, mode, 0, 0, func() { t.Error("release of a failed Plan was called") })
				return err
			}
			before := b.driver.Usage()
			cancelTwo(t, d, plan, plan)
			if after := b.driver.Usage(); after != before {
				t.Errorf("%+v is in use on the GPU, and %+v was", after, before)
			}
			if n := d.names(); n != 0 || len(b.from.Devices()) != 0 {
				t.Errorf("%d names and %d devices are left", n, len(b.from.Devices()))
			}
			if err := b.from.Why(mode); err != nil {
				t.Errorf("the mode does not work: %v", err)
			}
			h, o, err := b.send(src, mode, 0, nil)
			if err != nil || o.Mode() != mode {
				t.Fatalf("the next value is sent by %v, %v", o.Mode(), err)
			}
			m := b.receive(h)
			b.unwrap(m)
			settled(t, m)
			if s := b.lane.Stats(); s.Fallbacks != 0 || s.Failed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestPublishEndsWithItsContext: Publish and Fill end with their contexts while the arena is being
// published, and the next call tries again.
func TestPublishEndsWithItsContext(t *testing.T) {
	d := &stoppedDirectory{directory: newDirectory(t), asked: make(chan struct{})}
	b := newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{Directory: d})
	src, _ := b.tensor(codec.DTypeUint8, 5000)
	type sending struct {
		o *lane.Outgoing
		r shmstore.Reservation
	}
	var released atomic.Int64
	reserve := func() (s sending) {
		o, err := b.from.Plan(t.Context(), src, lane.Pool, 0, 0, func() { released.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		dev, n := o.On()
		r, piece, err := b.store.ReserveOn(dev, n, o.Size(), codec.IDBundle, 0)
		if err != nil {
			t.Fatal(err)
		}
		o.Reserved(piece)
		return sending{o, r}
	}
	for range 2 {
		published, filled := reserve(), reserve()
		publish := published.o.Publish
		fill := func(ctx context.Context) error { return filled.o.Fill(ctx, filled.r.Bytes(), b.s) }
		cancelTwo(t, d, publish, fill)
		published.r.Abort()
		published.o.Cancel()
		filled.r.Abort()
		if n := d.names(); n != 1 {
			t.Errorf("%d names are left, want that of the words", n)
		}
	}
	if n := released.Load(); n != 4 {
		t.Errorf("%d calls of release for 4 values that were not sent", n)
	}
	next := reserve()
	if err := next.o.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := d.names(); n != 2 {
		t.Errorf("%d names, want those of the words and of the arena", n)
	}
	if err := next.o.Fill(t.Context(), next.r.Bytes(), b.s); err != nil {
		t.Fatal(err)
	}
	h, err := next.r.Commit(next.o.Size(), 1)
	if err != nil {
		t.Fatal(err)
	}
	m := b.receive(h)
	b.unwrap(m)
	settled(t, m)
}

// TestCloseEndsWithItsContext: Close ends with its context while the directory is stopped.
func TestCloseEndsWithItsContext(t *testing.T) {
	d := &stoppedDirectory{directory: newDirectory(t), asked: make(chan struct{})}
	b := newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{Directory: d})
	src, _ := b.tensor(codec.DTypeUint8, 5000)
	plan := func(ctx context.Context) error {
		_, err := b.from.Plan(ctx, src, lane.Pool, 0, 0, nil)
		return err
	}
	cancelTwo(t, d, plan, b.from.Close)
	if err := b.from.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
