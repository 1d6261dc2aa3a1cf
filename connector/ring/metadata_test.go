package ring_test

import (
	"errors"
	"math"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
)

func TestNumber(t *testing.T) {
	for _, number := range []uint64{1, 1 << 53, math.MaxUint64} {
		if got, err := ring.Number(ring.Metadata(number)); got != number || err != nil {
			t.Errorf("%d came back as %d, %v", number, got, err)
		}
	}
	for _, none := range []connector.Metadata{nil, {"source_host": "10.0.0.1"}} {
		if got, err := ring.Number(none); got != 0 || err != nil {
			t.Errorf("%v names %d, %v", none, got, err)
		}
	}
	for _, bad := range []any{7, "", "0", "not hexadecimal", "10000000000000000"} {
		if _, err := ring.Number(connector.Metadata{"entry": bad}); !errors.Is(err, connector.ErrMetadata) {
			t.Errorf("%v: %v, want ErrMetadata", bad, err)
		}
	}
}
