//go:build !unix

package bench

import (
	"errors"
	"fmt"
	"time"
)

// processorTime is what the process has used so far. This platform has no
// getrusage.
func processorTime() (time.Duration, error) {
	return 0, fmt.Errorf("processor time: %w", errors.ErrUnsupported)
}
