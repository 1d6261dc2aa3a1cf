package pool

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// slow is a device whose arenas close slowly, as if the driver waited for streams.
type slow struct {
	cudaipc.Device
	wait <-chan struct{}
}

type slowArena struct {
	cudaipc.Arena
	wait <-chan struct{}
}

func (d slow) NewArena(sizeBytes int64) (cudaipc.Arena, error) {
	a, err := d.Device.NewArena(sizeBytes)
	return slowArena{a, d.wait}, err
}

func (a slowArena) Close() error {
	<-a.wait
	return a.Arena.Close()
}

// TestFreeDoesNotWaitForStreams: an arena is closed without blocking the store's writer. Its memory
// counts until the device has it back, and OnSpace is called then.
func TestFreeDoesNotWaitForStreams(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	streams, space := make(chan struct{}), make(chan struct{}, 1)
	machine.Device = slow{machine.Device, streams}
	opts := small
	opts.MaxBytes = 2 * minArenaBytes
	opts.OnSpace = func() { space <- struct{}{} }
	p := machine.pool(t, opts)
	held := []uint32{mustAllocate(t, p, p.MaxBytes()), mustAllocate(t, p, p.MaxBytes())} // all of the first arena
	if !p.Grow(1) {
		t.Fatal("the pool does not grow")
	}
	free(p, mustAllocate(t, p, 1))
	free(p, held[0])
	for range idleFrees {
		free(p, mustAllocate(t, p, 1))
	}
	if st := p.Stats(); st.ShrunkTotal != 1 || st.ArenaBytes != minArenaBytes {
		t.Errorf("the second arena was not closed: %+v", st)
	}
	held[0] = mustAllocate(t, p, p.MaxBytes())
	if p.Grow(1) {
		t.Error("the pool has grown beyond its bound, before the arena was closed")
	}
	close(streams)
	<-space
	if !p.Grow(1) {
		t.Error("the arena is closed, and the pool does not grow")
	}
	for _, piece := range held {
		free(p, piece)
	}
}

// stubborn is a device that does not unregister host memory.
type stubborn struct{ cudaipc.Device }

type stubbornMemory struct{ cudaipc.HostMemory }

func (d stubborn) RegisterHost(mem []byte, readOnly bool) (cudaipc.HostMemory, error) {
	h, err := d.Device.RegisterHost(mem, readOnly)
	return stubbornMemory{h}, err
}

func (h stubbornMemory) Close() error {
	_ = h.HostMemory.Close()
	return cudaipc.ErrOutOfMemory
}

// TestRefusedUnregisterKeepsWords: words that the device does not unregister stay mapped, because
// streams would write to any memory that is mapped there later.
func TestRefusedUnregisterKeepsWords(t *testing.T) {
	machine := newMachine(t, emul.Options{})
	e, err := NewExports(stubborn{machine}, 4)
	if err != nil {
		t.Fatal(err)
	}
	piece := mustAllocate(t, e, 0)
	words := e.Words()
	generation := e.Piece(piece).Generation
	e.slots.piece(piece).Fail()
	e.Free(piece)
	if err := e.Close(); !errors.Is(err, cudaipc.ErrOutOfMemory) {
		t.Errorf("Close: %v, want ErrOutOfMemory", err)
	}
	if got := words.Bytes()[int(piece)*SlotBytes+ReadyOffset]; got != byte(generation) {
		t.Errorf("the words are unmapped: %d, want generation %d", got, generation)
	}
	words.Close()
}
