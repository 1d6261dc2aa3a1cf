package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot returns the time of the clock with which the kernel records the start
// of processes.
func SinceBoot() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	return time.Duration(now.Nano()), nil
}

// OpenByNumber returns a pidfd of the process that had the process id pid at the time seen, by [SinceBoot]. The caller
// closes it. The error is [ErrGone] if that process is dead, or if the id belongs to a process that was started later.
//
// A process id is used again only after its process has died. So it is the same process if it was started before seen,
// and has the same start time before and after its pidfd was opened.
func OpenByNumber(pid int, seen time.Duration) (int, error) {
	before, err := ReadStat(pid)
	if err != nil {
		return -1, err
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process: %w", err)
	}
	after, err := ReadStat(pid)
	if err == nil && !isSame(before, after, seen) {
		err = fmt.Errorf("%w: its number belongs to a process that was started later", ErrGone)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// isSame reports whether the process had its id at the time seen, by its status before and after the pidfd was opened.
func isSame(before, after Stat, seen time.Duration) bool {
	return after.Started == before.Started && before.Started <= seen
}

// Watch watches the process that had the id pid at the time seen, by [SinceBoot]. The errors are those of
// [OpenByNumber]. The caller closes the watch.
func Watch(pid int, seen time.Duration) (*Process, error) {
	fd, err := OpenByNumber(pid, seen)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	_ = unix.SetNonblock(fd, true) // for the runtime's poller; without it, Process waits in poll(2)
	return Adopt(fd, pid)
}
