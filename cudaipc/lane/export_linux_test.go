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
	l.imports.leaving.Wait()
}
