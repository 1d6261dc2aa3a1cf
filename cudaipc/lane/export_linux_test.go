package lane

import "testing"

// Tidy has a lane look after what it has mapped, as it does once in a while, and
// unmap what it lets go of.
func Tidy(t *testing.T, l *Lane) {
	t.Helper()
	if l.imports.tidier == nil {
		t.Fatal("nobody looks after what is mapped")
	}
	l.imports.tidyAgain()
	l.imports.background.Wait()
}

// Untidy keeps a lane, which has mapped something, from looking after it by itself: a slow
// test takes as long as it waits until then.
func Untidy(t *testing.T, l *Lane) {
	t.Helper()
	l.imports.mu.Lock()
	defer l.imports.mu.Unlock()
	if l.imports.tidier == nil {
		t.Fatal("nobody looks after what is mapped")
	}
	l.imports.tidier.Stop()
}

// Sweep has a lane let go of the pools of the dead, as it does before it opens another.
func Sweep(l *Lane) { l.imports.sweep() }
