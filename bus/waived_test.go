package bus

import (
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestWaivedIsNoFault: an emission that the end of the session left undone is not
// a fault of the host to its client.
func TestWaivedIsNoFault(t *testing.T) {
	for _, err := range []error{errWaived, errCanceled} { // what was to be done, and what was waited for
		if m := failedMessage(7, fmt.Errorf("emit: %w", err)); m.Code != wire.CodeClosing {
			t.Errorf("%v: the code is %v, want %v", err, m.Code, wire.CodeClosing)
		}
	}
}
