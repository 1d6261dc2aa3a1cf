package cudaipc_test

import (
	"math"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func TestReachedWrapsAround(t *testing.T) {
	for _, c := range []struct {
		name    string
		word, v uint32
		want    bool
	}{
		{"equal", 7, 7, true},
		{"beyond", 8, 7, true},
		{"short of it", 6, 7, false},
		{"beyond the end", 2, math.MaxUint32 - 1, true},
		{"short of the end", math.MaxUint32 - 1, 2, false},
		{"nothing was written yet", 0, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := cudaipc.Reached(c.word, c.v); got != c.want {
				t.Errorf("Reached(%d, %d) = %t, want %t", c.word, c.v, got, c.want)
			}
		})
	}
}

// TestErrorsSayWhere: an error names the device of the call, if there is one.
func TestErrorsSayWhere(t *testing.T) {
	e := &cudaipc.Error{Call: "cuInit", Code: 100, Name: "CUDA_ERROR_NO_DEVICE", Err: cudaipc.ErrNoDevice}
	if got, want := e.Error(), "cuInit: no such GPU (CUDA_ERROR_NO_DEVICE, 100)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	e.Call, e.Device = "cuMemCreate", cudaipc.UUID{15: 1}
	if got, want := e.Error(), "cuMemCreate on GPU-00000000-0000-0000-0000-000000000001: no such GPU (CUDA_ERROR_NO_DEVICE, 100)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
