package bus_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestArenaByDefault: a client that does not say how much it needs gets no more than
// there may be, however large the windows are.
func TestArenaByDefault(t *testing.T) {
	p := bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return nil }}},
		Edges:  []bus.Edge{{To: "m", WindowBytes: 1 << 38}},
	}
	h := listen(t, p, bus.Options{Overcommit: true, MaxRequests: 400})
	_, mem := dialThin(t, h.path).sealedArena(0)
	if mem.Size() != 4<<20 {
		t.Errorf("an arena of %d bytes, want as many as the store has", mem.Size())
	}
	p.Edges[0].WindowBytes = 64 << 10
	h = listen(t, p, bus.Options{MaxRequests: 4})
	_, mem = dialThin(t, h.path).sealedArena(0)
	if want := int64(4*64<<10) * 4 / 3; mem.Size() < want || mem.Size() > want+4096 {
		t.Errorf("an arena of %d bytes, want %d for the windows", mem.Size(), want)
	}
}
