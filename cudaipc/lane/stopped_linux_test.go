package lane_test

import (
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// slowDirectory does not answer while it is stopped, like a stopped host.
type slowDirectory struct {
	*directory
	stopped chan struct{} // closed when it resumes
	asked   chan lane.Name
}

func (d *slowDirectory) Find(ctx context.Context, name lane.Name) (lane.Found, error) {
	if d.stopped != nil {
		d.asked <- name
		select {
		case <-d.stopped:
		case <-ctx.Done():
			return lane.Found{}, context.Cause(ctx)
		}
	}
	return d.directory.Find(ctx, name)
}

// TestStoppedDirectoryBlocksNoOthers: a call that waits for the directory blocks no call that does
// not need it, and no call whose context ends.
func TestStoppedDirectoryBlocksNoOthers(t *testing.T) {
	dir := &slowDirectory{directory: newDirectory(t), asked: make(chan lane.Name)}
	gpu := emul.Options{GranularityBytes: 1 << 16}
	opts := lane.Options{Directory: dir, Pool: pool.Options{ArenaBytes: 1 << 20, MaxBytes: 3 << 20}}
	from, other, to := newBench(t, gpu, opts), newBench(t, gpu, opts), newBench(t, gpu, lane.Options{Directory: dir})
	send := func(b *bench) shmstore.Lease {
		src, _ := b.tensor(codec.DTypeUint8, 400<<10)
		lease, err := b.store.Local().Take(b.mustSend(src, lane.Pool))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(lease.Release)
		return lease
	}
	here, second, elsewhere := send(from), send(from), send(other)
	third := send(from) // an arena has space for two
	open := func(ctx context.Context, l shmstore.Lease) (*lane.Message, error) {
		return to.lane.Open(ctx, l.Bytes())
	}
	known, err := open(t.Context(), here)
	if err != nil {
		t.Fatal(err)
	}
	dir.stopped = make(chan struct{})
	opened := make(chan error)
	for _, l := range []shmstore.Lease{third, elsewhere} {
		go func() {
			m, err := open(context.Background(), l)
			if err == nil {
				err = m.Close()
			}
			opened <- err
		}()
		if name := <-dir.asked; (name.Number == 2) != (l == third) {
			t.Errorf("asked for %v", name)
		}
	}
	// Both mutexes are held now: that of pools and that of arenas.
	m, err := open(t.Context(), second)
	if err != nil {
		t.Fatalf("open a message in a mapped arena: %v", err)
	}
	for _, m := range []*lane.Message{m, known} {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		settled(t, m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, l := range []shmstore.Lease{third, elsewhere} {
		if _, err := open(ctx, l); !errors.Is(err, context.Canceled) {
			t.Errorf("open with a context that has ended: %v", err)
		}
	}
	close(dir.stopped)
	go func() {
		for range dir.asked { // further questions
		}
	}()
	for range 2 {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
	close(dir.asked)
}

// slowDriver opens every GPU but the first slowly.
type slowDriver struct {
	cudaipc.Driver

	asked, open chan struct{}
}

func (d *slowDriver) Open(uuid cudaipc.UUID) (cudaipc.Device, error) {
	if uuid != (cudaipc.UUID{}) {
		close(d.asked)
		<-d.open
	}
	return d.Driver.Open(uuid)
}

// TestSlowOpenBlocksNoOthers: while a GPU is being opened slowly, other calls continue.
func TestSlowOpenBlocksNoOthers(t *testing.T) {
	driver, err := emul.New(emul.Options{Devices: 2})
	if err != nil {
		t.Fatal(err)
	}
	caps, err := driver.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slow := &slowDriver{driver, make(chan struct{}), make(chan struct{})}
	l, err := lane.Open(t.Context(), lane.Options{Driver: slow})
	if err != nil {
		t.Fatal(err)
	}
	type opened struct {
		dev cudaipc.Device
		err error
	}
	second := make(chan opened, 1)
	go func() {
		dev, err := l.Device(caps[1].Device)
		second <- opened{dev, err}
	}()
	<-slow.asked
	if _, err := l.Device(cudaipc.UUID{}); err != nil {
		t.Error("the first GPU, meanwhile:", err)
	}
	l.Stats()
	closed := make(chan error, 1)
	go func() { closed <- l.Close(t.Context()) }()
	close(slow.open)
	if o := <-second; o.err != nil || o.dev.Caps().Device != caps[1].Device {
		t.Errorf("the second GPU: %+v", o)
	}
	if err := errors.Join(<-closed, driver.Close()); err != nil {
		t.Error(err)
	}
}
