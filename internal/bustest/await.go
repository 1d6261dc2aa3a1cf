package bustest

import "time"

// Patience is how long a test waits for what never comes when a promise is broken.
const Patience = 20 * time.Second

// Await waits for what other goroutines and processes bring about.
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
