package limits

import "golang.org/x/sys/unix"

const (
	leastFiles = 256     // what every system allows
	mostFiles  = 1 << 30 // "no limit" is a number beyond it
)

// Files is how many descriptors this process may have open.
func Files() int {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return leastFiles
	}
	return int(min(r.Cur, mostFiles))
}
