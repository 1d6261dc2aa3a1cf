package speech_test

import (
	"context"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/speech"
)

// Invalid input fails its request. The programs that use the stages test valid input.
func TestNonsenseFailsItsRequest(t *testing.T) {
	b, err := bus.Open(t.Context(), speech.Pipeline(0, 0, 0), bus.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		name, rate string
		dtype      codec.DType
		shape      []int
		want       string
	}{
		{name: "no rate", dtype: codec.DTypeInt16, shape: []int{4, 1}, want: "attribute rate"},
		{name: "no channels", rate: "16000", dtype: codec.DTypeInt16, shape: []int{4}, want: "[sample][channel]"},
		{name: "no samples", rate: "16000", dtype: codec.DTypeFloat32, shape: []int{4, 1}, want: "int16"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := b.Stream(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			err = r.Input(t.Context()).EmitTensor(c.dtype, c.shape, func([]byte) error { return nil },
				bus.Attr(speech.AttrRate, c.rate), bus.Attr(speech.AttrQuality, "0.1"), bus.Last())
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("the request ended with %v, not with %q", err, c.want)
			}
		})
	}
}
