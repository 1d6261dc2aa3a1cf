package testbus

import (
	"context"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// Soon is a context that ends after Patience.
func Soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

// OpenFiles counts the open file descriptors of this process.
func OpenFiles(t testing.TB) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// Services are the services of a bus, with the arena's mapping closed.
func Services(t testing.TB, b *bus.Bus) bus.Services {
	t.Helper()
	on, err := b.Backend().Services()
	if err != nil {
		t.Fatal(err)
	}
	on.Arena.Close()
	return on
}

// Published is the number of names in the directory of a bus.
func Published(t testing.TB, b *bus.Bus) int {
	t.Helper()
	return Services(t, b).Directory.Len()
}

// SetDirectoryLimit bounds the names in the directory of a bus.
func SetDirectoryLimit(t testing.TB, b *bus.Bus, names int) {
	t.Helper()
	Services(t, b).Directory.SetMaxNames(names)
}

// Polls counts how often goroutines that wait for results of a bus have polled for messages of other
// processes.
func Polls(t testing.TB, b *bus.Bus) int64 {
	t.Helper()
	return Services(t, b).LastActive.Spinner().Polls()
}
