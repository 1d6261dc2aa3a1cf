package codectest

import "runtime"

// AllocatedBy counts what a call allocates. Nothing else may run beside it.
func AllocatedBy(f func() error) (sizeBytes uint64, err error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, err
}
