package bus

import (
	"fmt"
	"strings"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TensorTransport is the transport of tensors in GPU memory on an edge.
type TensorTransport = wire.Transport

const (
	// TensorsDefault copies them through host memory, in the store.
	TensorsDefault = wire.TransportDefault
	// TensorsIPC shares their allocations, which stay until the last consumer is
	// done.
	TensorsIPC = wire.TransportIPC
	// TensorsPool copies them into a pool of GPU memory that all processes can map.
	TensorsPool = wire.TransportPool
)

// ParseTensorTransport is the inverse of [TensorTransport.String]. The error wraps
// [ErrConfig].
func ParseTensorTransport(word string) (TensorTransport, error) {
	var words []string
	for t := TensorsDefault; t.Valid(); t++ {
		if words = append(words, t.String()); t.String() == word {
			return t, nil
		}
	}
	return 0, fmt.Errorf("%w: there is no transport of tensors %q: use one of %s", ErrConfig, word, strings.Join(words, ", "))
}
