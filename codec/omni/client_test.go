package omni_test

import (
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
	"github.com/omnibus-runtime/omnibus/codec/omni"
)

// TestAgainstClient: Go and Python refuse the same payloads, and decode the others to
// the same values.
func TestAgainstClient(t *testing.T) {
	h := codectest.NewHostile(1)
	payloads := make([][]byte, 8000)
	for i := range payloads {
		if payloads[i] = h.Value(); h.IntN(4) == 0 {
			payloads[i] = h.Damage(payloads[i])
		}
	}
	decode := func(p []byte) (any, error) { return codec.Decode[any](omni.Serializer{KeepOrder: true}, p) }
	codectest.AgainstClient(t, "omni", payloads, decode, func(v any) string {
		if m, ok := v.(omni.Image); ok {
			return fmt.Sprintf("image %s %v %x", m.Mode, m.Shape, m.Data)
		}
		return fmt.Sprintf("a %T", v)
	})
}
