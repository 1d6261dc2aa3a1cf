package bus

import (
	"fmt"
	"strings"
)

// TensorTransport says how the tensors of an edge's payloads travel that lie in
// memory of a GPU.
type TensorTransport int

const (
	// TensorsDefault copies them through host memory, in the store.
	TensorsDefault TensorTransport = iota
	// TensorsIPC hands over the allocations that they lie in, which stay until
	// their last consumer is done.
	TensorsIPC
	// TensorsPool copies them into a pool of GPU memory that the processes share.
	TensorsPool
)

var tensorTransports = [...]string{TensorsDefault: "default", TensorsIPC: "cuda_ipc", TensorsPool: "cuda_ipc_pool"}

// String returns the word that pipeline files use.
func (t TensorTransport) String() string {
	if t.valid() {
		return tensorTransports[t]
	}
	return fmt.Sprintf("transport %d", int(t))
}

// ParseTensorTransport is the inverse of [TensorTransport.String]. The error wraps
// [ErrConfig].
func ParseTensorTransport(word string) (TensorTransport, error) {
	for t, name := range tensorTransports {
		if name == word {
			return TensorTransport(t), nil
		}
	}
	return 0, fmt.Errorf("%w: there is no transport of tensors %q: use one of %s", ErrConfig, word, strings.Join(tensorTransports[:], ", "))
}

func (t TensorTransport) valid() bool { return t >= 0 && int(t) < len(tensorTransports) }
