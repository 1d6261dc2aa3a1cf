package scoreboard

import (
	"time"

	"golang.org/x/sys/unix"
)

// started is now, and its time by CLOCK_MONOTONIC: the clock that time.Since reads, too, whose zero it does not tell.
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
