//go:build !linux

package segment

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/connector"
)

// New fails with [connector.ErrUnavailable]: the format needs Linux.
func New(Options) (connector.Transport, error) {
	return nil, fmt.Errorf("%w: segments in /dev/shm need Linux", connector.ErrUnavailable)
}
