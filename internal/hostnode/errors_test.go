package hostnode

import (
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestCanceledEmissionReportsClosing: an emission that was canceled by the end of the session is not
// reported as an internal error.
func TestCanceledEmissionReportsClosing(t *testing.T) {
	if m := Failed(7, fmt.Errorf("emit: %w", bus.ErrCanceled)); m.Code != wire.CodeClosing {
		t.Errorf("the code is %v, want %v", m.Code, wire.CodeClosing)
	}
}
