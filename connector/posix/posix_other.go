//go:build !linux

package posix

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/connector"
)

// New fails with [connector.ErrUnavailable]: the files and locks are those of Linux.
func New(Options) (connector.Transport, error) {
	return nil, fmt.Errorf("%w: stores in /dev/shm need Linux", connector.ErrUnavailable)
}
