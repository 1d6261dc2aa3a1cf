package scoreboard

import (
	"time"

	"golang.org/x/sys/unix"
)

// started is the start of the process, startedAt the same time by CLOCK_MONOTONIC. time.Since reads that clock too, but
// package time does not reveal its zero.
var started, startedAt = clock()

func clock() (time.Time, int64) {
	var ts unix.Timespec
	at := time.Now()
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil { // no system lacks it
		return at, 1
	}
	return at, ts.Nano()
}

func now() int64 { return startedAt + int64(time.Since(started)) }
