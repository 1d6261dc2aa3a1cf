package testbus

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

// Services is what a host's end of a bus stands on, without the memory.
func Services(t testing.TB, b *bus.Bus) bus.Services {
	t.Helper()
	on, err := b.Backend().Services()
	if err != nil {
		t.Fatal(err)
	}
	on.Arena.Close()
	return on
}

// Published is how many names are in the directory of a bus.
func Published(t testing.TB, b *bus.Bus) int {
	t.Helper()
	return Services(t, b).Directory.Len()
}

// SetDirectoryRoom bounds them.
func SetDirectoryRoom(t testing.TB, b *bus.Bus, names int) {
	t.Helper()
	Services(t, b).Directory.SetMaxNames(names)
}

// Polls counts how often goroutines that wait for results of a bus looked for what other
// processes send.
func Polls(t testing.TB, b *bus.Bus) int64 {
	t.Helper()
	return Services(t, b).LastActive.Spinner().Polls()
}
