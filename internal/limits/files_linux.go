package limits

import "golang.org/x/sys/unix"

const (
	minFiles = 256     // allowed by every system
	maxFiles = 1 << 30 // "no limit" is a larger number
)

// Files is how many descriptors this process may have open.
func Files() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return minFiles
	}
	return int(min(r.Cur, maxFiles))
}
