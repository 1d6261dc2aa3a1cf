package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An idleSide is a side without messages. Its figure is the memory or processor time that its processes use.
type idleSide struct {
	side
	of   gaugeName
	pids []int // the host or the server is the first
}

func (s idleSide) read(ctx context.Context, slice time.Duration) (float64, error) {
	if s.of == ofMemory {
		return privateMiB(s.pids[0])
	}
	return processorPercent(ctx, s.pids, slice)
}

// privateMiB returns the memory that a process shares with no other, in MiB.
func privateMiB(pid int) (float64, error) {
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	var kibibytes int
	for line := range bytes.Lines(rollup) {
		words := strings.Fields(string(line))
		if len(words) == 3 && (words[0] == "Private_Clean:" || words[0] == "Private_Dirty:") {
			n, err := strconv.Atoi(words[1])
			if err != nil {
				return 0, fmt.Errorf("smaps_rollup: %w", err)
			}
			kibibytes += n
		}
	}
	return float64(kibibytes) / kib, nil
}

// processorPercent returns the processor time of processes during a wait, in per cent of one core.
func processorPercent(ctx context.Context, pids []int, wait time.Duration) (float64, error) {
	const percent = 100
	before, err := processorTime(pids)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	after, err := processorTime(pids)
	return percent * (after - before).Seconds() / time.Since(start).Seconds(), err
}

// processorTime returns the sum of the processor times of processes so far, in user and system mode.
func processorTime(pids []int) (all time.Duration, err error) {
	for _, pid := range pids {
		const ofProcess = 2 // CPUCLOCK_SCHED: in nanoseconds
		var used unix.Timespec
		if err := unix.ClockGettime(int32(^pid<<3|ofProcess), &used); err != nil {
			return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
		}
		all += time.Duration(used.Nano())
	}
	return all, nil
}
