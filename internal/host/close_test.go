package host

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestStoreSummary: sockets or connectors that cannot be closed do not make the store unclean.
func TestStoreSummary(t *testing.T) {
	other := errors.New("remove a socket: it is gone")
	lost := fmt.Errorf("%w: payloads were not given back", bus.ErrNotClean)
	late := fmt.Errorf("bus: close: still alive: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		broken error
		want   string
	}{
		{nil, "store clean"},
		{other, "store clean"},
		{errors.Join(other, late), "store not closed in time"},
		{errors.Join(other, lost), "store NOT clean"},
		{errors.Join(late, lost), "store NOT clean"},
	} {
		if got := storeSummary(c.broken); got != c.want {
			t.Errorf("%v: %s, want %s", c.broken, got, c.want)
		}
	}
}
