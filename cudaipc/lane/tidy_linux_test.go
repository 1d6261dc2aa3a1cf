package lane_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
)

// TestReadersUnmapUnusedArenas: a reader without new messages unmaps withdrawn arenas, and those of
// dead owners, once no message reads them: they would keep memory of the GPU in use.
func TestReadersUnmapUnusedArenas(t *testing.T) {
	from, to, dir := pair(t, lane.Options{Pool: pool.Options{ArenaBytes: 1 << 20, MaxBytes: 2 << 20}})
	src, data := from.tensor(codec.DTypeUint8, 400<<10)
	imports := func() int { return to.driver.Usage().Imports }
	var open []*lane.Message
	for range 3 { // two to an arena
		open = append(open, handOverPool(from, to, src))
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
		t.Errorf("%d arenas of a dead owner are mapped, of one that is read", imports())
	}
	if got := to.unwrap(open[0]).(*lane.Tensor); !bytes.Equal(to.read(got), data) {
		t.Error("other bytes")
	}
	settled(t, open[0])
	lane.Tidy(t, to.lane)
	if imports() != 0 {
		t.Errorf("%d arenas of a dead owner are mapped", imports())
	}
}

// TestUnmapDoesNotBlockOpen: an unmap that waits in the driver for a stream does not delay the
// opening of messages.
func TestUnmapDoesNotBlockOpen(t *testing.T) {
	dir := newDirectory(t)
	dead := newDirectory(t)
	gpu := emul.Options{GranularityBytes: 1 << 16}
	old, from := newBench(t, gpu, lane.Options{Directory: dead}), newBench(t, gpu, lane.Options{Directory: dir})
	held := make(chan struct{})
	driver := newWatched(t, gpu, func(cudaipc.Arena) { <-held })
	to := newBench(t, gpu, lane.Options{Driver: driver, Directory: both{dir, dead}})
	t.Cleanup(func() { close(held) }) // before the lane is closed
	src, _ := old.tensor(codec.DTypeUint8, 100)
	settle := func(m *lane.Message) {
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		settled(t, m)
	}
	settle(handOverPool(old, to, src))
	close(dead.done)
	src, _ = from.tensor(codec.DTypeUint8, 100)
	settle(handOverPool(from, to, src)) // finds that the other owner is dead
}

// TestArenaIsUnmappedOnce: an owner dies while one call asks whether it has withdrawn an arena, and
// another call finds it dead. A second unmap could hit a later mapping.
func TestArenaIsUnmappedOnce(t *testing.T) {
	dir := &dying{directory: newDirectory(t)}
	gpu := emul.Options{GranularityBytes: 1 << 16}
	from := newBench(t, gpu, lane.Options{Directory: dir.directory})
	var mu sync.Mutex
	unmapped := make(map[cudaipc.Arena]int)
	driver := newWatched(t, gpu, func(a cudaipc.Arena) {
		mu.Lock()
		defer mu.Unlock()
		unmapped[a]++
	})
	to := newBench(t, gpu, lane.Options{Driver: driver, Directory: dir})
	src, _ := from.tensor(codec.DTypeUint8, 100)
	m := handOverPool(from, to, src)
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	settled(t, m)
	dir.asked = func() {
		close(dir.done)
		dir.withdrawAll()
		lane.Sweep(to.lane)
	}
	lane.Tidy(t, to.lane)
	if len(unmapped) != 1 {
		t.Fatalf("%d arenas were unmapped, of one", len(unmapped))
	}
	for _, n := range unmapped {
		if n != 1 {
			t.Errorf("an arena was unmapped %d times", n)
		}
	}
}

// dying is a directory whose owner may die before it has answered.
type dying struct {
	*directory
	asked func() // called once; nil: the owner lives
}

func (d *dying) Find(ctx context.Context, name lane.Name) (lane.Found, error) {
	if asked := d.asked; asked != nil {
		d.asked = nil
		asked()
	}
	return d.directory.Find(ctx, name)
}

// watched is a driver that reports the imported arenas that are unmapped.
type watched struct {
	cudaipc.Driver
	unmaps func(cudaipc.Arena)
}

func newWatched(t *testing.T, gpu emul.Options, unmaps func(cudaipc.Arena)) *watched {
	t.Helper()
	driver, err := emul.New(gpu)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = driver.Close() })
	return &watched{driver, unmaps}
}

func (d *watched) Open(uuid cudaipc.UUID) (cudaipc.Device, error) {
	dev, err := d.Driver.Open(uuid)
	return watchedDevice{dev, d}, err
}

type watchedDevice struct {
	cudaipc.Device
	of *watched
}

func (d watchedDevice) ImportArena(fd int, sizeBytes int64) (cudaipc.Arena, error) {
	a, err := d.Device.ImportArena(fd, sizeBytes)
	return watchedArena{a, d.of}, err
}

type watchedArena struct {
	cudaipc.Arena
	of *watched
}

func (a watchedArena) Close() error {
	a.of.unmaps(a.Arena)
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
