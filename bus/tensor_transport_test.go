package bus_test

import (
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

func TestTensorTransports(t *testing.T) {
	for want, word := range map[bus.TensorTransport]string{
		bus.TensorsDefault: "default", bus.TensorsIPC: "cuda_ipc", bus.TensorsPool: "cuda_ipc_pool",
	} {
		if got, err := bus.ParseTensorTransport(word); err != nil || got != want || got.String() != word {
			t.Errorf("ParseTensorTransport(%q) = %v, %v", word, got, err)
		}
	}
	for _, word := range []string{"", "cuda", "CUDA_IPC", "transport 7"} {
		if got, err := bus.ParseTensorTransport(word); !errors.Is(err, bus.ErrConfig) {
			t.Errorf("ParseTensorTransport(%q) = %v, %v, want ErrConfig", word, got, err)
		}
	}
	if got := bus.TensorTransport(7).String(); got != "transport 7" {
		t.Errorf("an unknown transport is called %q", got)
	}
}
