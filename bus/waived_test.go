package bus

import (
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestWaivedIsNoFault: an emission that the end of the session left undone is not
// a fault of the host to its client.
func TestWaivedIsNoFault(t *testing.T) {
	if m := failedMessage(7, fmt.Errorf("emit: %w", errCanceled)); m.Code != wire.CodeClosing {
		t.Errorf("the code is %v, want %v", m.Code, wire.CodeClosing)
	}
}
