//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"os"
	"testing"

	"github.com/ebitengine/purego"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/drivertest"
)

// libraryVariable names the copy of the fake for the suite's other process.
const libraryVariable = "OMNIBUS_CUDA_FAKE"

func TestMain(m *testing.M) {
	if os.Getenv(libraryVariable) != "" {
		drivertest.Main(m, openSuite)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		removeFakes()
		os.Exit(code)
	}))
}

// TestDriver runs the suite over the fake.
func TestDriver(t *testing.T) {
	for _, c := range []struct {
		name string
		hide []string
	}{
		{name: "all there"},
		{name: "no arenas", hide: []string{"cuMemCreate"}},
		{name: "no handles", hide: []string{"cuIpcOpenMemHandle_v2"}},
		{name: "no words", hide: []string{"cuStreamWaitValue32_v2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(libraryVariable, without(t, c.hide...).path)
			drivertest.Run(t, openSuite)
		})
	}
}

// realVariable enables TestRealDriver.
const realVariable = "OMNIBUS_CUDA_REAL"

// TestRealDriver runs the suite over the machine's library, for machines with a GPU:
// scripts/gpu-check.sh runs it there. A missing driver is then a failure.
func TestRealDriver(t *testing.T) {
	if os.Getenv(realVariable) == "" {
		t.Skipf("for machines with a GPU, with %s=1", realVariable)
	}
	d, err := Open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv(libraryVariable, defaultLibrary)
	drivertest.Run(t, openSuite)
}

func openSuite() (cudaipc.Driver, error) {
	library := os.Getenv(libraryVariable)
	d, err := Open(Options{Library: library})
	if err != nil || library == defaultLibrary {
		return d, err // a real GPU cannot be made to fail
	}
	return breaker{d.(*driver)}, nil
}

// breaker can make a device of the fake fail.
type breaker struct{ *driver }

func (b breaker) Break(uuid cudaipc.UUID, _ error) error {
	handle, err := purego.Dlopen(b.lib.path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return err
	}
	var poison func(device, code int32)
	purego.RegisterLibFunc(&poison, handle, "fake_poison")
	for _, c := range b.cards {
		if c.uuid == uuid {
			poison(c.number, 719)
		}
	}
	return nil
}

func pages(t testing.TB, sizeBytes int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, sizeBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}
