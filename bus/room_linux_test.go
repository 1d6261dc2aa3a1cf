package bus

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestClientBytes: the host does not give one client all the memory that there is.
func TestClientBytes(t *testing.T) {
	s := &session{srv: &Server{bus: &Bus{graph: &graph{}}}}
	const part = clientBytes / 4 * 3
	if err := s.makes(part); err != nil {
		t.Fatal(err)
	}
	if err := s.makes(part); !errors.Is(err, connector.ErrFull) {
		t.Errorf("more than a client may have: %v", err)
	}
	s.unmake(part)
	s.uncharge(true)
	if err := s.makes(clientBytes); err != nil || s.ex.own != 1 || s.ex.placed != 1 {
		t.Errorf("all that a client may have: %v, %+v", err, s.ex)
	}
	if err := s.makeArena(&wire.Arena{Bytes: clientBytes + 1}); !errors.Is(err, ErrPayload) {
		t.Errorf("an arena that is too large: %v", err)
	}
	s.srv.bus.opts.Store.ArenaBytes = 2 * clientBytes
	if most := s.mostBytes(); most != 2*clientBytes {
		t.Errorf("with a larger store a client may have %d bytes", most)
	}
}
