package codectest

import "runtime"

// AllocatedBy counts the bytes that a call allocates. No other goroutine may allocate meanwhile.
func AllocatedBy(f func() error) (sizeBytes uint64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}
