//go:build unix

package bench

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is what the process has used so far, in user and system mode.
func processorTime() (time.Duration, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
