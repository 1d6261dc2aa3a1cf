package bustest

import (
	"context"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// Soon is a context that ends when a test has waited enough.
func Soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// OpenFiles counts what this process has open: connections, events and memory.
func OpenFiles(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// Footing is what a host's end of a bus stands on, without the memory.
func Footing(t testing.TB, b *bus.Bus) bus.Footing {
	t.Helper()
	on, err := b.Floor().Footing()
	if err != nil {
		t.Fatal(err)
	}
	on.Arena.Close()
	return on
}

// Published is how many names are in the directory of a bus.
func Published(t testing.TB, b *bus.Bus) int {
	t.Helper()
	return Footing(t, b).Directory.Len()
}

// SetDirectoryRoom bounds them.
func SetDirectoryRoom(t testing.TB, b *bus.Bus, names int) {
	t.Helper()
	Footing(t, b).Directory.Bound(names)
}

// Looks counts how often goroutines that wait for results of a bus looked for what other
// processes send.
func Looks(t testing.TB, b *bus.Bus) int64 {
	t.Helper()
	return Footing(t, b).Heard.Lookout().Looks()
}
