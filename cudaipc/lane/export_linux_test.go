package lane

import "testing"

// Tidy runs a lane's tidy call, and waits for the unmaps.
func Tidy(t *testing.T, l *Lane) {
	t.Helper()
	if l.imports.tidier == nil {
		t.Fatal("no tidy timer runs")
	}
	l.imports.tidyAgain()
	l.imports.background.Wait()
}

// Untidy stops the tidy timer of a lane with mapped pools, for slow tests that count calls.
func Untidy(t *testing.T, l *Lane) {
	t.Helper()
	l.imports.mu.Lock()
	defer l.imports.mu.Unlock()
	if l.imports.tidier == nil {
		t.Fatal("no tidy timer runs")
	}
	l.imports.tidier.Stop()
}

// Sweep closes the pools of dead processes, as a lane does before it opens another pool.
func Sweep(l *Lane) { l.imports.sweep() }
