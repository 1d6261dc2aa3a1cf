package lane_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

// TestReadersGiveBack: a reader that gets no more messages lets go of arenas that
// their owner has given back, and of the dead's, once nothing there is read: they would keep
// memory of the GPU in use.
func TestReadersGiveBack(t *testing.T) {
	from, to, dir := pair(t, lane.Options{Pool: pool.Options{ArenaBytes: 1 << 20, MaxBytes: 2 << 20}})
	src, data := from.tensor(codec.DTypeUint8, 400<<10)
	imports := func() int { return to.driver.Usage().Imports }
	var open []*lane.Message
	for range 3 { // two to an arena
		open = append(open, hand(from, to, src))
	}
	if imports() != 2 {
		t.Fatalf("%d arenas are mapped", imports())
	}
	for i, m := range open {
		if i == 0 {
			continue // in the first arena
		}
		if got := to.unwrap(m).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
			t.Error("other bytes")
		}
		settled(t, m)
	}
	lane.Tidy(t, to.lane)
	if imports() != 2 {
		t.Errorf("%d arenas are mapped, of two that are published", imports())
	}
	dir.withdrawAll()
	lane.Tidy(t, to.lane)
	if imports() != 1 {
		t.Errorf("%d arenas are mapped, of one that is read", imports())
	}
	close(dir.done)
	lane.Tidy(t, to.lane)
	if imports() != 1 {
		t.Errorf("%d arenas of the dead are mapped, of one that is read", imports())
	}
	if got := to.unwrap(open[0]).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
		t.Error("other bytes")
	}
	settled(t, open[0])
	lane.Tidy(t, to.lane)
	if imports() != 0 {
		t.Errorf("%d arenas of the dead are mapped", imports())
	}
}

// TestGivingBackWaitsForNobody: a stream that never ends, which the driver waits for
// when it unmaps something, does not keep messages from being opened.
func TestGivingBackWaitsForNobody(t *testing.T) {
	dir := newDirectory(t)
	dead := newDirectory(t)
	gpu := emul.Options{GranularityBytes: 1 << 16}
	old, from := newBench(t, gpu, lane.Options{Directory: dead}), newBench(t, gpu, lane.Options{Directory: dir})
	held := make(chan struct{})
	driver := &slow{wait: held}
	var err error
	if driver.Driver, err = emul.New(gpu); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = driver.Driver.Close() })
	to := newBench(t, gpu, lane.Options{Driver: driver, Directory: both{dir, dead}})
	t.Cleanup(func() { close(held) }) // before the lane is closed
	src, _ := old.tensor(codec.DTypeUint8, 100)
	settle := func(m *lane.Message) {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		settled(t, m)
	}
	settle(hand(old, to, src))
	close(dead.done)
	src, _ = from.tensor(codec.DTypeUint8, 100)
	settle(hand(from, to, src)) // which finds that the other one is dead
}

// slow is a driver that takes its time to unmap arenas.
type slow struct {
	cudaipc.Driver
	wait <-chan struct{}
}

func (d *slow) Open(uuid cudaipc.UUID) (cudaipc.Device, error) {
	dev, err := d.Driver.Open(uuid)
	return slowDevice{dev, d}, err
}

type slowDevice struct {
	cudaipc.Device
	of *slow
}

func (d slowDevice) ImportArena(fd int, sizeBytes int64) (cudaipc.Arena, error) {
	a, err := d.Device.ImportArena(fd, sizeBytes)
	return slowArena{a, d.of}, err
}

type slowArena struct {
	cudaipc.Arena
	of *slow
}

func (a slowArena) Close() error {
	<-a.of.wait
	return a.Arena.Close()
}

// both finds what either of two processes has published.
type both struct {
	*directory
	other *directory
}

func (b both) Find(ctx context.Context, name lane.Name) (lane.Found, error) {
	found, err := b.directory.Find(ctx, name)
	if errors.Is(err, lane.ErrNotPublished) {
		return b.other.Find(ctx, name)
	}
	return found, err
}
