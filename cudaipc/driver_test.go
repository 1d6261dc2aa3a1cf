package cudaipc_test

import (
	"errors"
	"math"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func TestReachedGoesInACircle(t *testing.T) {
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

// TestErrorsSayWhere: a call on no device names none.
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

func TestUUID(t *testing.T) {
	const text = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	u, err := cudaipc.ParseUUID(text)
	if err != nil || u.String() != text {
		t.Fatalf("ParseUUID(%q) = %v, %v", text, u, err)
	}
	for _, other := range []string{"MIG-00112233-4455-6677-8899-aabbccddeeff", "00112233445566778899aabbccddeeff"} {
		if got, err := cudaipc.ParseUUID(other); err != nil || got != u {
			t.Errorf("ParseUUID(%q) = %v, %v, want the same device", other, got, err)
		}
	}
	for _, bad := range []string{"", "0", "GPU-", "GPU-00112233-4455-6677-8899-aabbccddee", "GPU-zz112233-4455-6677-8899-aabbccddeeff"} {
		if _, err := cudaipc.ParseUUID(bad); !errors.Is(err, cudaipc.ErrInvalid) {
			t.Errorf("ParseUUID(%q): %v, want ErrInvalid", bad, err)
		}
	}
}
