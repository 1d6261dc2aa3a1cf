package testbus

import (
	"testing"
	"time"
)

// Patience is how long a test waits before it fails.
const Patience = 20 * time.Second

// Await waits until happened reports true, for changes by other goroutines and processes.
func Await(t interface {
	Helper()
	Fatalf(format string, args ...any)
}, happened func() bool,
) {
	t.Helper()
	limit := time.NewTimer(Patience)
	defer limit.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !happened() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("waited %v in vain", Patience)
		}
	}
}

// Next receives the next value of a channel.
func Next[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-Soon(t).Done():
		t.Fatalf("waited %v in vain", Patience)
	}
	return v
}
