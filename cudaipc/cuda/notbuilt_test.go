//go:build !cuda || !linux || (!amd64 && !arm64)

package cuda_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/cuda"
)

func TestWithoutTheTag(t *testing.T) {
	driver, err := cuda.Open(cuda.Options{})
	if driver != nil || !errors.Is(err, cudaipc.ErrNotBuilt) {
		t.Fatalf("Open = %v, %v, want ErrNotBuilt", driver, err)
	}
	for _, part := range []string{"libcuda.so.1", "-tags cuda"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not mention %s", err, part)
		}
	}
}
