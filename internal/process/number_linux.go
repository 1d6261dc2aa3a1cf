package process

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot returns the time by the clock that the kernel notes the start of
// processes with.
func SinceBoot() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	return time.Duration(now.Nano()), nil
}

// OpenByNumber returns a pidfd of the process that has a number, which is the caller's to close. It is the process that
// had the number at the time seen, by [SinceBoot]: the error is [ErrGone] where that process is dead, and where the
// number belongs to one that was started later.
//
// The number of a process is free for another only when the process is dead. So it is the same process if it was there
// at that time, and has the same start before and after it was opened.
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

// isSame tells by what was read before and after a number was opened whether its process had the number at the time seen.
func isSame(before, after Stat, seen time.Duration) bool {
	return after.Started == before.Started && before.Started <= seen
}

// Watch watches the process that had a number at the time seen, by [SinceBoot]. The errors are those of
// [OpenByNumber]. The caller closes the watch.
func Watch(pid int, seen time.Duration) (*Process, error) {
	fd, err := OpenByNumber(pid, seen)
	if err != nil {
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	_ = unix.SetNonblock(fd, true) // for the runtime's poller; without it, Process waits in poll(2)
	return Adopt(fd, pid)
}
